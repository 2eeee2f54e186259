"""Algorithms of your own: what each rank sends and receives in each round, as a Python function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from ._allfold import add_algorithm, has_root


class Send(NamedTuple):
    """A rank sends ``chunks`` chunks of its buffer, from ``chunk`` on, to rank ``to``."""

    to: int
    chunk: int
    chunks: int = 1


class Recv(NamedTuple):
    """A rank receives ``chunks`` chunks from rank ``source`` into its buffer, from ``chunk`` on: added to its values, or not."""

    source: int
    chunk: int
    chunks: int = 1
    reduce: bool = False


Step = tuple[Send | None, Recv | None] | None
StepFunction = TypeVar("StepFunction", bound=Callable[..., Step])


def algorithm(
    collective: str,
    name: str | None = None,
    *,
    rounds: int | Callable[[int], int],
    chunks: int | Callable[[int], int] = lambda ranks: ranks,
    ranks: int | None = None,
    about: str = "an algorithm of a Python program",
) -> Callable[[StepFunction], StepFunction]:
    """Adds the decorated function as an algorithm of a collective, which every command and communicator then takes by name.

    The function ``step(rank, round, ranks)`` returns what a rank does in a round: ``(Send, Recv)``, of which each may be ``None``,
    or ``None``. A send reads the buffer as it was before the round. With ``ranks=8`` the algorithm is for 8 ranks only, and the
    function may be ``step(rank, round)``. An algorithm of a collective with a root (broadcast, reduce, gather, scatter) takes the
    root too: ``step(rank, round, ranks, root)``.

    ``rounds`` and ``chunks`` are the number of rounds, and the number of near-equal chunks that the buffer is cut into, or
    functions of the number of ranks; by default there are as many chunks as ranks.

    The function is called once for every step of a number of ranks, at most 20 million, when the steps are first needed. An
    exception of the function is raised by the command, or by the communicator's ``use``, that needs the steps.

    >>> @algorithm("all_gather", "my_ring", rounds=lambda ranks: ranks - 1)
    ... def step(rank, round, ranks):
    ...     return (Send((rank + 1) % ranks, (rank - round) % ranks),
    ...             Recv((rank - 1) % ranks, (rank - round - 1) % ranks))

    Raises:
        ValueError: there is no such collective, or it has an algorithm of this name already.
        TypeError: the function does not take these arguments.
    """
    rooted = has_root(collective)

    def shape(count: int) -> tuple[int, int]:
        if ranks is not None and count != ranks:
            raise ValueError(f"this algorithm of {collective} is for {ranks} ranks alone, and {count} were asked for")
        return tuple(of(count) if callable(of) else of for of in (chunks, rounds))  # type: ignore[return-value]

    def add(step: StepFunction) -> StepFunction:
        given = _given(step, rooted, ranks is not None)
        add_algorithm(
            collective,
            name or step.__name__,
            about,
            shape,
            lambda rank, round, count, root: step(*(rank, round, count, root)[:given]),
        )
        return step

    return add


def _given(step: Callable[..., Any], rooted: bool, fixed: bool) -> int:
    """How many of rank, round, number of ranks and root a function takes."""
    import inspect

    allowed = [4] if rooted else [3, 2] if fixed else [3]
    signature = inspect.signature(step)
    for count in allowed:
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count
    if rooted:
        raise TypeError("an algorithm of a collective with a root is step(rank, round, ranks, root)")
    if fixed:
        raise TypeError("an algorithm for one number of ranks is step(rank, round) or step(rank, round, ranks)")
    raise TypeError("an algorithm is step(rank, round, ranks), or step(rank, round) for one number of ranks: give ranks=N")
