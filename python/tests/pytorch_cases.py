"""PyTorch's own cases of ``torch.distributed`` from its wheel, changed to accept ``allfold`` where they accept ``gloo``.

``c10d_cases.py`` runs them, and sets the environment that they expect; this module is what a case's processes import.
"""

from __future__ import annotations

import importlib.util
import os
import sys

import torch

MODULE = "torch.testing._internal.distributed.distributed_test"
# Conditions of the module that require Gloo by its name, and what replaces them.
SAME = [
    ('BACKEND != "gloo"', 'BACKEND not in ("gloo", "allfold")'),
    ('BACKEND == "gloo"', 'BACKEND in ("gloo", "allfold")'),
    ('require_backend_is_available({"gloo"})', 'require_backend_is_available({"gloo", "allfold"})'),
]

if os.environ["BACKEND"] == "allfold":
    import allfold.torch  # noqa: F401


def load():
    """The module with PyTorch's cases, changed to accept ``allfold`` where they accept ``gloo``."""
    from torch.testing._internal import common_distributed

    for feature in common_distributed.DistTestCases.backend_feature.values():
        if "gloo" in feature:
            feature.add("allfold")
    common_distributed.DistTestCases.backend_feature["plugin"].add("allfold")
    found = importlib.util.find_spec(MODULE)
    source = found.loader.get_source(MODULE)
    if os.environ["BACKEND"] == "allfold":
        for theirs, both in SAME:
            if theirs not in source:
                raise SystemExit(f"PyTorch's module has no `{theirs}` any more: this script must be written anew for it")
            source = source.replace(theirs, both)
    module = importlib.util.module_from_spec(found)
    sys.modules[MODULE] = module
    exec(compile(source, found.origin, "exec", dont_inherit=True), module.__dict__)
    return module


cases = load()


def entered(environment, target, *arguments, **named):
    """What a case's process runs: in the environment at its start, not at the start of the fork server."""
    os.environ.update(environment)
    target(*arguments, **named)


class Cases(cases.TestDistBackend, cases.DistributedTest._DistTestBase):
    """Every case, in processes forked from one that has imported PyTorch, which saves seconds for each case."""

    def setUp(self):
        super().setUp()
        process = torch.multiprocessing.get_context("forkserver").Process

        def start(target, name, args, kwargs):
            return process(target=entered, name=name, args=(dict(os.environ), target, *args), kwargs=kwargs)

        self._start_processes(start)
