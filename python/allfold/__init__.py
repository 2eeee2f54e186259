"""Allfold: collective communication that is proved, simulated and run.

Three parts, each of which can be used alone:

* :func:`verify`, :func:`simulate`, :func:`bench`, :func:`machines`, :func:`predict`: the ``allfold`` command, whose results are
  tables of dataclasses and NumPy columns; :func:`algorithm` adds an algorithm of your own.
* :class:`Communicator` and :func:`run`: collectives between processes, on NumPy arrays and other objects that
  share their memory.
* ``allfold.torch``: a backend of ``torch.distributed``.
"""

from ._allfold import AbortedError, AllfoldError, DeadlineError, MismatchError, PeerLostError
from .command import Table, bench, command, machines, predict, simulate, verify
from .communicator import Communicator, Work
from .processes import RankError, run
from .schedule import Recv, Send, algorithm

__version__ = "0.1.0"

__all__ = [
    "AbortedError",
    "AllfoldError",
    "Communicator",
    "DeadlineError",
    "MismatchError",
    "PeerLostError",
    "RankError",
    "Recv",
    "Send",
    "Table",
    "Work",
    "algorithm",
    "bench",
    "command",
    "machines",
    "predict",
    "run",
    "simulate",
    "verify",
]
