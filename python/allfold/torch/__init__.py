"""A backend of ``torch.distributed``: ``import allfold.torch; dist.init_process_group("allfold")``.

Processes of one host communicate by shared memory, hosts by TCP; with a secret (``ALLFOLD_SECRET_FILE``) under TLS. All tensors
must be on the CPU and dense (all_reduce takes sparse ones too). A tensor that is not contiguous is copied on the way.

An error names the rank that disagreed, died or hung, and where two calls disagree the Python lines of both.
"""

import warnings

import torch
import torch.distributed as dist

from . import coalescing
from .group import AllfoldGroup, create
from .memory import empty
from .simulation import Simulated, simulate

__all__ = ["AllfoldGroup", "Simulated", "empty", "simulate"]

TESTED = "2.15"

if not torch.__version__.startswith(TESTED + "."):
    warnings.warn(
        f"allfold.torch was tested with PyTorch {TESTED}, and this is {torch.__version__}: if something fails, try that one",
        stacklevel=2,
    )

if not hasattr(dist.Backend, "ALLFOLD"):
    coalescing.install()
    dist.Backend.register_backend("allfold", create, extended_api=True, devices=["cpu"])
