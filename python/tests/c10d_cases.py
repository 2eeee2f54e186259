"""Runs PyTorch's own tests of torch.distributed, as its wheel ships them, on a backend, and counts which pass.

    python python/tests/c10d_cases.py --backend allfold --ranks 2 [--sample | --only NAME[,NAME..]] [--json FILE]
    python python/tests/c10d_cases.py --table FILE..

PyTorch chooses its cases by sets of backends' names; here ``allfold`` is added to each set that has ``gloo``, so that both run
the same cases. ``--json`` adds a line for each case to a file; ``--table`` makes the table of such files, by groups of cases.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import socket
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
# A case belongs to the first group whose pattern is found in its name.
GROUPS = [
    ("DTensor", r"^dtensor"),
    ("tensor parallelism", r"^(tensor|sequence|embedding)"),
    ("FSDP, FSDP2, activation checkpoints", r"^(fully|hybrid|fsdp|activation)"),
    ("DDP, replicate, ZeRO, join", r"^(ddp|zero|composable)"),
    ("pipelines, checkpoints", r"^(pipeline|distributed)"),
    ("DDP", r"ddp|DistributedDataParallel|SyncBatchNorm|no_sync|static_graph|hook|averager|Localsgd|hierarchical|Sampler"),
    ("point to point", r"send|recv"),
    ("all_gather", r"all_gather|allgather"),
    ("reduce_scatter", r"reduce_scatter"),
    ("all_to_all", r"all_to_all"),
    ("all_reduce", r"all_reduce|allreduce"),
    ("barrier", r"barrier"),
    ("broadcast", r"broadcast"),
    ("gather, scatter", r"gather|scatter"),
    ("reduce", r"reduce"),
    ("groups and the rest", r""),
]
SAMPLE = """
    test_DistributedDataParallelCPU test_accumulate_gradients_no_sync_allreduce_with_then_hook test_ddp_create_graph
    test_ddp_logging_data_cpu test_grads_same_across_ranks_with_no_sync test_static_graph_api_cpu
    test_all_gather test_all_gather_coalesced_with_empty test_all_gather_complex test_all_gather_full_group
    test_all_gather_object_subgroup test_all_reduce_coalesced_full_group_max test_all_reduce_coalesced_sum
    test_all_reduce_complex_unsupported_ops test_all_reduce_full_group_product test_all_reduce_min test_all_reduce_sum_async
    test_all_reduce_sum_complex test_sparse_all_reduce_sum test_barrier_full_group test_barrier_timeout_full_group
    test_monitored_barrier_gloo_rank_0_timeout test_monitored_barrier_gloo_subgroup test_batch_isend_irecv_gloo
    test_batch_isend_irecv_gloo_tags test_irecv test_isend_torch_profiler test_send_recv_any_source test_send_recv_with_tag
    test_broadcast_full_group test_gather_checks test_gather_full_group test_reduce_full_group_max test_reduce_sum_twice
    test_scatter_checks test_scatter_complex test_scatter_object_list test_destroy_full_group test_get_future
    test_get_rank_size_group
""".split()


def environment(backend: str, ranks: int) -> None:
    """Sets what PyTorch's cases expect in the environment."""
    folder = tempfile.mkdtemp()
    for name in ("barrier", "test_dir"):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    values = {"BACKEND": backend, "WORLD_SIZE": ranks, "TEMP_DIR": folder, "INIT_METHOD": "env://"}
    values |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1, "CUDA_VISIBLE_DEVICES": ""}
    # The processes that run the cases import the modules of this folder.
    values["PYTHONPATH"] = os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ.update({name: str(value) for name, value in values.items()})
    os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "120")
    multiprocessing.set_forkserver_preload(["pytorch_cases"])


class Outcome(unittest.TextTestResult):
    """Records the outcome of each case."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.rows = []

    def startTest(self, test):  # noqa: N802
        super().startTest(test)
        self.begun = time.monotonic()
        self.became = "passed"

    def addSkip(self, test, reason):  # noqa: N802
        super().addSkip(test, reason)
        self.became = f"skipped: {reason}"

    def addFailure(self, test, error):  # noqa: N802
        super().addFailure(test, error)
        self.became = "failed"

    def addError(self, test, error):  # noqa: N802
        super().addError(test, error)
        self.became = "failed"

    def stopTest(self, test):  # noqa: N802
        super().stopTest(test)
        name = test.id().split(".")[-1]
        row = {"case": name, "became": self.became, "seconds": round(time.monotonic() - self.begun, 1)}
        self.rows.append(row)
        self.told(row)

    def told(self, row):
        """Prints each case as it ends, so that a run that is stopped has printed those before."""
        print(json.dumps(row), file=sys.stderr, flush=True)


def run(options: argparse.Namespace) -> int:
    environment(options.backend, options.ranks)
    sys.path.insert(0, HERE)
    from pytorch_cases import Cases

    names = sorted(unittest.TestLoader().getTestCaseNames(Cases))
    wanted = SAMPLE if options.sample else [name for name in options.only.split(",") if name]
    unknown = set(wanted) - set(names)
    if unknown:
        raise SystemExit(f"PyTorch has no cases {', '.join(sorted(unknown))}")
    first, of = map(int, options.part.split("/"))
    chosen = (wanted or names)[first::of]

    class Told(Outcome):
        def told(self, row):
            super().told(row)
            if options.json:
                with open(options.json, "a") as file:
                    file.write(json.dumps({"backend": options.backend, "ranks": options.ranks, **row}) + "\n")

    suite = unittest.TestSuite(Cases(name) for name in chosen)
    result = unittest.TextTestRunner(resultclass=Told, verbosity=0, stream=sys.stderr).run(suite)
    counts = {word: sum(row["became"].startswith(word) for row in result.rows) for word in ("passed", "failed", "skipped")}
    print(", ".join(f"{word} {count}" for word, count in counts.items()))
    return 1 if counts["failed"] or len(result.rows) != len(chosen) else 0


def table(files: list[str]) -> str:
    """The table of files of ``--json``: a row for each group of cases, a column for each backend and number of ranks."""
    became: dict[tuple[str, int], dict[str, str]] = {}
    for name in files:
        with open(name) as file:
            for row in map(json.loads, file):
                word = row["became"].split(":")[0]
                became.setdefault((row["backend"], row["ranks"]), {})[row["case"]] = word
    columns = sorted(became, key=lambda each: (each[1], each[0] != "gloo"))
    words = ("passed", "failed", "skipped")
    heads = [f"{backend}, {ranks} ranks" for backend, ranks in columns]
    lines = [f"| cases | {' | '.join(heads)} |", f"|---|{'---|' * len(columns)}"]

    def row(name: str, chosen) -> str:
        cells = [[of.get(case) for case in chosen if case in of] for of in (became[column] for column in columns)]
        return f"| {name} | {' | '.join(', '.join(str(cell.count(word)) for word in words) for cell in cells)} |"

    cases = sorted({case for of in became.values() for case in of})
    group = {case: next(name for name, pattern in GROUPS if re.search(pattern, case)) for case in cases}
    lines += [row(name, [case for case in cases if group[case] == name]) for name, _ in GROUPS if name in group.values()]
    lines.append(row("all", cases))
    for backend, ranks in columns:
        if backend != "gloo" and ("gloo", ranks) in became:
            theirs, ours = became["gloo", ranks], became[backend, ranks]
            worse = [case for case in cases if theirs.get(case) == "passed" and ours.get(case) != "passed"]
            told = ", ".join(worse) or "none"
            lines += ["", f"Cases that pass with gloo and not with {backend}, {ranks} ranks: {told}."]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="allfold", choices=["allfold", "gloo"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", default="", help="names of cases, with commas between them")
    parser.add_argument("--sample", action="store_true", help="run the built-in selection of cases only")
    parser.add_argument("--json", help="a file to which a line for each case is added")
    parser.add_argument("--part", default="0/1", help="K/N: every N-th case from the K-th on")
    parser.add_argument("--table", nargs="+", metavar="FILE", help="make the table of these files, and run nothing")
    options = parser.parse_args()
    if options.table:
        print(table(options.table))
        return 0
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
