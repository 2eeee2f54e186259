"""Faults that a program of torch.distributed can meet: none hangs, none gives a wrong result, and each names its cause.

The numbers are those of the project's fault matrix. Faults of the wire itself (7 to 14, 24) need a proxy between the ranks, which the
tests of `collectives` have.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
pytest.importorskip("torch", reason="SKIP: PyTorch is not installed")

import torch
import torch.distributed as dist
from torch_ranks import Outcome, join, launch

def die() -> None:
    """This process ends at once."""
    os.kill(os.getpid(), signal.SIGKILL)


# Ranks that disagree.


def count(rank: int, tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor[:9] if rank == 1 else tensor)


def dtype(rank: int, tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor.double() if rank == 1 else tensor)


def operator(rank: int, tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor, dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)


def root(rank: int, tensor: torch.Tensor) -> None:
    dist.broadcast(tensor, 1 if rank == 1 else 0)


def order(rank: int, tensor: torch.Tensor) -> None:
    if rank == 1:
        dist.barrier()
    dist.all_reduce(tensor)
    if rank != 1:
        dist.barrier()


def operation(rank: int, tensor: torch.Tensor) -> None:
    dist.all_gather_into_tensor(torch.empty(3 * len(tensor)), tensor) if rank == 1 else dist.all_reduce(tensor)


def asynchronous(rank: int, tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor[:9] if rank == 1 else tensor, async_op=True).wait()


def uneven(rank: int, tensor: torch.Tensor) -> None:
    if rank == 1:
        dist.all_reduce(tensor)
    else:
        splits = [1, 2, len(tensor) - 3]
        dist.all_to_all_single(torch.empty(3 * splits[rank]), tensor, [splits[rank]] * 3, splits)


def uneven_late(rank: int, tensor: torch.Tensor) -> None:
    if rank == 1:
        dist.all_reduce(tensor)
    else:
        dist.group.WORLD._messages = Late(dist.group.WORLD._messages)
        dist.all_to_all_single(torch.empty(3), tensor[:3], [1, 1, 1], [1, 1, 1])


class Late:
    """Messages that begin when the collective before them has failed."""

    def __init__(self, messages: Any) -> None:
        self._messages = messages

    def receive(self, *given: Any) -> Any:
        time.sleep(0.2)
        return self._messages.receive(*given)

    def send(self, *given: Any) -> None:
        self._messages.send(*given)


DISAGREE = [count, dtype, operator, root, order, operation, asynchronous, uneven, uneven_late]


def disagree(rank: int, size: int, store: str, name: str, refused: bool) -> None:
    join(rank, size, store)
    dist.barrier()
    if refused:
        # A call that is refused before anything is sent does not count in the sequence of operations.
        with pytest.raises(ValueError):
            dist.all_gather_into_tensor(torch.empty(5), torch.ones(3))
    for _ in range(3):
        dist.all_reduce(torch.ones(10), async_op=True).wait()
    begun = time.monotonic()
    try:
        globals()[name](rank, torch.ones(10))
    finally:
        took = time.monotonic() - begun
        assert took < 1.0, f"it took {took:.2f} s"


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("how", DISAGREE)
def test_ranks_that_disagree_are_told_both_calls_and_both_lines_within_a_second(how, refused):
    for rank, outcome in enumerate(launch(3, disagree, how.__name__, refused, limit=30)):
        assert outcome.kind == "MismatchError", f"rank {rank}: {outcome}"
        first, *lines = outcome.error.splitlines()
        assert re.match(r"ranks disagree: rank \d called \w+\(.*, but rank \d called \w+\(", first), first
        ranks = {int(each) for each in re.findall(r"rank (\d) called", first)}
        assert 1 in ranks and len(ranks) == 2, first
        named = {int(each) for line in lines for each in re.findall(r"rank (\d) called it at .*test_torch_faults.py:\d+ in", line)}
        assert named == ranks, outcome.error
        for line in lines:
            number = int(re.search(r"test_torch_faults.py:(\d+) in (\w+)", line)[1])
            begin = how.__code__.co_firstlineno
            assert begin < number <= begin + 6, f"{line}: {how.__name__} begins at line {begin}"


# The table of faults. A scenario is what a rank does; its judge gives the text that a rank's error must have, or `DONE`.


def killed_before_first(rank: int, size: int, store: str) -> str:
    join(rank, size, store)
    if rank == 1:
        die()
    dist.all_reduce(torch.ones(1000))
    return "done"


def killed_within(rank: int, size: int, store: str, after: float) -> str:
    join(rank, size, store)
    dist.barrier()
    if rank == 1:
        threading.Timer(after, die).start()
    while True:
        data = torch.full((1 << 20,), float(rank + 1))
        dist.all_reduce(data)
        if not torch.equal(data, torch.full_like(data, 6.0)):
            return "wrong"


def killed_in_backward(rank: int, size: int, store: str) -> str:
    """DDP reads the futures of its sums in C++."""
    join(rank, size, store)
    layers = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)])
    model = torch.nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=0.02)
    if rank == 1:
        layers[3].weight.register_hook(lambda _: die())
    model(torch.ones(4, 64)).sum().backward()
    return "done"


def killed_after_last(rank: int, size: int, store: str) -> str:
    join(rank, size, store)
    data = torch.full((1000,), float(rank + 1))
    dist.all_reduce(data)
    if not torch.equal(data, torch.full_like(data, 6.0)):
        return "wrong"
    if rank == 1:
        die()
    dist.all_reduce(data)
    return "done"


def first_killed(rank: int, size: int, store: str) -> str:
    """Rank 0 dies: a group without rank 0 still works, and the group of all ranks fails."""
    join(rank, size, store)
    rest = dist.new_group([1, 2])
    if rank == 0:
        die()
    data = torch.full((1000,), float(rank))
    for _ in range(10):
        data.fill_(float(rank))
        dist.all_reduce(data, group=rest)
    if not torch.equal(data, torch.full_like(data, 3.0)):
        return "wrong"
    dist.all_reduce(data)
    return "done"


def slow(rank: int, size: int, store: str) -> str:
    join(rank, size, store)
    dist.barrier()
    if rank == 1:
        time.sleep(1.0)
    data = torch.full((1000,), float(rank + 1))
    dist.all_reduce(data)
    return "done" if torch.equal(data, torch.full_like(data, 6.0)) else "wrong"


def stopped(rank: int, size: int, store: str) -> str:
    join(rank, size, store, 2.0)
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)  # the test continues this process after the others' time-out
    data = torch.ones(1000)
    # When this rank continues, the others' data may have arrived before the news that the group has failed: then this result is
    # right, and the next call raises.
    dist.all_reduce(data)
    if not torch.equal(data, torch.full_like(data, 3.0)):
        return "wrong"
    dist.barrier()
    return "done"


def released(processes: list) -> None:
    """Continues a stopped rank after some seconds."""
    threading.Timer(8.0, lambda: os.kill(processes[1].pid, signal.SIGCONT)).start()


def disagreeing(rank: int, size: int, store: str, name: str) -> str:
    join(rank, size, store)
    globals()[name](rank, torch.ones(10))
    return "done"


def skipped(rank: int, size: int, store: str) -> str:
    join(rank, size, store, 2.0)
    dist.barrier()
    if rank != 1:
        dist.all_reduce(torch.ones(10))
        return "done"
    time.sleep(4.0)
    dist.barrier()
    return "done"


def interleaved(rank: int, size: int, store: str) -> str:
    join(rank, size, store)
    groups = [dist.new_group(list(range(size))) for _ in range(2)]
    data = [torch.full((1000,), float(rank + 1)), torch.full((1000,), 10.0 * (rank + 1))]
    turn = (1, 0) if rank == 1 else (0, 1)
    works = [dist.all_reduce(data[at], group=groups[at], async_op=True) for at in turn]
    [work.wait() for work in works]
    right = torch.equal(data[0], torch.full((1000,), 6.0)) and torch.equal(data[1], torch.full((1000,), 60.0))
    return "done" if right else "wrong"


def world_size(rank: int, size: int, store: str) -> str:
    join(rank, size + (rank == 1), store)
    return "done"


def duplicate(rank: int, size: int, store: str) -> str:
    told = f"{store}.told"
    try:
        join(rank, size, store)
    except RuntimeError:
        open(told, "w").close()
        raise
    # The job must not end before the second process has been refused.
    until = time.monotonic() + 40
    while not os.path.exists(told) and time.monotonic() < until:
        time.sleep(0.01)
    data = torch.full((10,), float(rank + 1))
    dist.all_reduce(data)
    return "done" if torch.equal(data, torch.full_like(data, 6.0)) else "wrong"


def missing(rank: int, size: int, store: str) -> str:
    join(rank, size, store, 2.0)
    return "done"


def listening() -> list[int]:
    """The ports at which this process listens."""
    mine = {os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{each}")}
    with open("/proc/self/net/tcp") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in mine]


def rogue(rank: int, size: int, store: str) -> str:
    """Clients that are no ranks connect to each rank while the ranks work: silent ones, with HTTP, with garbage."""
    join(rank, size, store)
    clients = []
    for port in listening():
        for what in (b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(range(256)) * 4):
            clients.append(socket.create_connection(("127.0.0.1", port), timeout=5))
            clients[-1].sendall(what)
    if not clients:
        raise RuntimeError("this rank listens at no port, so nobody can connect to it")
    for _ in range(20):
        data = torch.full((1000,), float(rank + 1))
        dist.all_reduce(data)
        if not torch.equal(data, torch.full_like(data, 6.0)):
            return "wrong"
    return "done"


def secret(rank: int, size: int, store: str) -> str:
    path = f"{store}.secret.{rank}"
    with open(path, "w") as file:
        file.write(("1" if rank == 1 else "2") * 64 + "\n")
    os.chmod(path, 0o600)
    os.environ["ALLFOLD_SECRET_FILE"] = path
    join(rank, size, store)
    return "done"


def returned(rank: int, size: int, store: str) -> str:
    """Rank 1 dies without leaving, and a new process joins the same job as rank 1."""
    join(rank, size, store)
    data = torch.ones(10)
    dist.all_reduce(data)
    if rank == 1:
        # A new process of the rank, with nothing of the old one's but the store.
        code = f"""
import sys
sys.path[:0] = {sys.path!r}
from torch_ranks import join
try:
    join(1, {size}, {store!r})
    text = "it joined"
except RuntimeError as error:
    text = str(error)
with open({store!r} + ".new", "w") as file:
    file.write(text)
import os
os.rename({store!r} + ".new", {store!r} + ".returned")
"""
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        die()
    try:
        dist.all_reduce(data)
    finally:
        until = time.monotonic() + 40
        while not os.path.exists(f"{store}.returned") and time.monotonic() < until:
            time.sleep(0.1)
        with open(f"{store}.returned") as file:
            text = file.read()
        if "rank 1 has joined this group already" not in text:
            raise RuntimeError(f"the rank that came back: {text}")
    return "done"


DONE = None
"""What a judge gives for a rank that must return ``"done"``."""

Judge = Callable[[int], str | None]


def survivors(culprit: int, text: str) -> Judge:
    """All ranks but the culprit raise an error with this text; the culprit may do anything."""
    return lambda rank: "" if rank == culprit else text


# Number, fault, scenario, its arguments, what each rank's error matches (None: it returns; "": it may do anything), options.
MATRIX: list[tuple] = [
    ("1", "killed before the first collective", killed_before_first, (), survivors(1, "rank 1 is lost"), {}),
    *[
        ("2", f"killed within collectives, after {after} s", killed_within, (after,), survivors(1, "rank 1 is lost"), {})
        for after in (0.005, 0.05, 0.3)
    ],
    ("2", "the same over TCP", killed_within, (0.05,), survivors(1, "rank 1 is lost"), {"ALLFOLD_SHARED_MEMORY": "off"}),
    ("2", "killed within a backward pass of DDP", killed_in_backward, (), survivors(1, "rank 1 is lost"), {}),
    ("3", "killed after its last send", killed_after_last, (), survivors(1, "rank 1 is lost"), {}),
    ("4", "rank 0 killed; a group without it goes on", first_killed, (), survivors(0, "rank 0 is lost"), {}),
    ("5", "slow, within the time-out", slow, (), lambda _: DONE, {}),
    ("6", "stopped beyond the time-out", stopped, (), lambda rank: "rank [02]" if rank == 1 else "rank 1", {"meanwhile": released}),
    ("15", "another count", disagreeing, ("count",), lambda _: "ranks disagree: .*rank 1", {}),
    ("16", "another type", disagreeing, ("dtype",), lambda _: "ranks disagree: .*rank 1", {}),
    ("16", "another operator", disagreeing, ("operator",), lambda _: "ranks disagree: .*rank 1", {}),
    ("16", "another root", disagreeing, ("root",), lambda _: "ranks disagree: .*rank 1", {}),
    ("17", "another order", disagreeing, ("order",), lambda _: "ranks disagree: .*rank 1", {}),
    ("18", "a rank skips a collective", skipped, (), lambda rank: "rank [02]" if rank == 1 else "rank 1 never entered", {}),
    ("19", "two groups interleaved differently", interleaved, (), lambda _: DONE, {}),
    # `within`: ranks that disagree on the world size get an error at once, not after their time-out of 30 s.
    ("20", "another world size", world_size, (), lambda rank: "of 4" if rank != 1 else "of 3", {"within": 10.0}),
    ("21", "two processes of one rank", duplicate, (), lambda at: "rank 1 has joined this group already" if at == 3 else DONE, {}),
    ("22", "a missing rank", missing, (), lambda _: "rank 1 of 3 did not join", {"ranks": [0, 2]}),
    ("25", "clients that are no ranks", rogue, (), lambda _: DONE, {}),
    ("26", "another secret", secret, (), lambda rank: "secret" if rank == 1 else "ranks? ([02], )?1", {"ALLFOLD_TIMEOUT_FACTOR": "0.2"}),
    ("27", "a rank comes back into its old job", returned, (), survivors(1, "rank 1 is lost"), {}),
]


def judged(outcome: Outcome, wanted: str | None) -> str:
    """How a rank ended, by what its judge gives: ``right``, ``hangs``, ``wrong`` or ``unnamed`` (the error's text differs)."""
    if outcome.hangs:
        return "hangs"
    if outcome.value == "wrong":
        return "wrong"
    if wanted == "":
        return "right"
    if wanted is None:
        return "right" if outcome.value == "done" else "wrong"
    if outcome.error is None:
        return "wrong"
    return "right" if re.search(wanted, outcome.error, re.DOTALL) else "unnamed"


def test_faults_neither_hang_nor_give_wrong_results_and_are_named(capsys):
    rows, failures = [], []
    for number, what, scenario, arguments, judge, options in MATRIX:
        environment = {name: value for name, value in options.items() if name.isupper()}
        ranks = [0, 1, 2, 1] if scenario is duplicate else options.get("ranks")
        given = {"environment": environment, "ranks": ranks, "meanwhile": options.get("meanwhile")}
        begun = time.monotonic()
        outcomes = launch(3, scenario, *arguments, limit=45.0, **given)
        took = time.monotonic() - begun
        numbers = ranks or [0, 1, 2]
        if scenario is duplicate:
            numbers = [0, 1, 2, 3]
            if outcomes[1].error is not None:
                outcomes[1], outcomes[3] = outcomes[3], outcomes[1]  # the process that joined second is refused
        found = [judged(outcome, judge(rank)) for rank, outcome in zip(numbers, outcomes)]
        late = options.get("within", 45.0)
        found = ["hangs" if outcome.seconds > late else word for word, outcome in zip(found, outcomes)]
        rows.append((number, what, took, *(found.count(word) for word in ("hangs", "wrong", "unnamed"))))
        ends = zip(numbers, found, outcomes)
        failures += [f"{number}, {what}: rank {rank} {word}: {outcome}" for rank, word, outcome in ends if word != "right"]
    with capsys.disabled():
        print("\n| fault | what | s | hangs | wrong | unnamed |\n|---|---|---|---|---|---|")
        for number, what, took, *counts in rows:
            print(f"| {number} | {what} | {took:.1f} | {' | '.join(map(str, counts))} |")
        sums = [sum(row[at] for row in rows) for at in (3, 4, 5)]
        print(f"faults {len(rows)}, hangs {sums[0]}, wrong {sums[1]}, unnamed {sums[2]}")
    assert not failures, "\n".join(failures)


# Memory for messages that a peer has sent and that nobody has received.


def flooded(rank: int, size: int, store: str) -> str:
    join(rank, size, store)
    dist.barrier()
    if rank == 1:
        for _ in range(100):
            dist.send(torch.ones(10_000), 0)
    # Sums use other channels, so the first may be done before rank 0 has read the messages that no receive takes.
    for _ in range(200):
        dist.all_reduce(torch.ones(1))
        time.sleep(0.005)
    return "done"


def test_a_rank_that_sends_more_than_is_received_fails_the_group_by_name():
    for outcome in launch(2, flooded, environment={"ALLFOLD_MAILBOX_BYTES": "1000000"}, limit=30):
        assert outcome.error and "rank 0 got a frame from rank 1" in outcome.error, outcome
        assert "at most 1000000 are held" in outcome.error, outcome
    for outcome in launch(2, flooded, limit=30):
        assert outcome.value == "done", outcome


def test_a_bound_that_is_no_number_is_refused():
    for outcome in launch(2, flooded, environment={"ALLFOLD_MAILBOX_BYTES": "lots"}, limit=30):
        assert outcome.kind == "ValueError" and "ALLFOLD_MAILBOX_BYTES" in outcome.error, outcome


# Flight records.


def test_triage_names_the_rank_that_never_entered(tmp_path):
    outcomes = launch(3, skipped, environment={"ALLFOLD_FLIGHT_DIR": str(tmp_path)}, limit=40)
    assert all(outcome.error for outcome in outcomes), outcomes
    assert len(list(tmp_path.iterdir())) >= 3, list(tmp_path.iterdir())
    done = subprocess.run([sys.executable, "-m", "allfold", "triage", str(tmp_path)], capture_output=True, text=True, timeout=60)
    said = done.stdout + done.stderr
    assert "all_reduce" in said and "rank 1" in said, said


def sizes_on_one_rank(rank: int, size: int, store: str) -> None:
    join(rank, size, store)
    splits = [2, 2] if rank == 0 else None
    dist.all_to_all_single(torch.empty(4), torch.ones(4), splits, splits)


def test_split_sizes_on_one_rank_only_are_told_as_such():
    for outcome in launch(2, sizes_on_one_rank, limit=30):
        assert outcome.kind == "MismatchError", outcome
        line = next(line for line in outcome.error.splitlines() if line.startswith("  rank 0 called it at"))
        assert line.endswith("(all_to_all by sizes, which the ranks exchange first: all ranks give split sizes or lists, or none does)"), line
        assert next(line for line in outcome.error.splitlines() if line.startswith("  rank 1 called it at")).endswith(" in sizes_on_one_rank")
