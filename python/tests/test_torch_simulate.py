"""Training functions on a simulated machine: the numbers of a real run, and the times of the simulated machine.

Two simulated ranks compute the same bits as two processes, because a sum of two terms has one order.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: scripts/python.sh installs it")

import simulated_programs as programs  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import allfold  # noqa: E402
from allfold.torch import simulate  # noqa: E402

PROGRAMS = [programs.ddp, programs.fsdp, programs.pipeline, programs.messages, programs.zero]


def everything() -> list:
    """All programs one after the other, in one process for each rank."""
    import allfold.torch  # noqa: F401

    torch.set_num_threads(1)
    outcomes = [program() for program in PROGRAMS]
    dist.destroy_process_group()
    return outcomes


@pytest.fixture(scope="module")
def real() -> dict:
    """The results of two processes, by program and rank."""
    ranks = allfold.run(2, everything)
    return {program: [rank[at] for rank in ranks] for at, program in enumerate(PROGRAMS)}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_two_simulated_ranks_compute_the_bits_of_two_processes(program, real):
    simulated = simulate(program, topology="hgx-h100", ranks=2).results
    for (losses, weights), (real_losses, real_weights) in zip(simulated, real[program], strict=True):
        assert losses == real_losses
        assert torch.equal(weights, real_weights)
        assert weights.numel() > 0


@pytest.mark.parametrize("program", [programs.ddp, programs.fsdp, programs.messages], ids=lambda program: program.__name__)
def test_a_run_repeats_to_the_event(program):
    first, second = (simulate(program, topology="hgx-h100", ranks=4) for _ in range(2))
    assert first.event_hash == second.event_hash != 0
    assert first.finish_us == second.finish_us
    assert first.results[0][0] == second.results[0][0]
    assert torch.equal(first.results[3][1], second.results[3][1])


def gpt_step(steps: int = 3) -> float:
    """A transformer's training, as it would be written for real GPUs."""
    dist.init_process_group("allfold")
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Embedding(128, 64),
        *[nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(2)],
        nn.Linear(64, 128),
    )
    net = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.1)
    optimizer = torch.optim.AdamW(net.parameters())
    tokens = torch.randint(0, 128, (2, 17), generator=torch.Generator().manual_seed(dist.get_rank()))
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()
    return loss.item()


@pytest.fixture(scope="module")
def eight():
    return simulate(gpt_step, topology="hgx-h100", ranks=8, device="h100")


def test_eight_gpus_have_step_times_and_exposed_communication(eight):
    parameters = sum(p.numel() for p in nn.Linear(64, 128).parameters())
    assert len(eight.results) == 8 and all(loss > 0 for loss in eight.results)
    assert eight.step_us > 0
    for rank in range(8):
        assert 0 < eight.compute_us[rank] < eight.finish_us[rank]
        assert 0 < eight.exposed_us[rank] < eight.finish_us[rank]
        assert eight.compute_us[rank] + eight.exposed_us[rank] == pytest.approx(eight.finish_us[rank])
        assert eight.bytes_sent[rank] > 4 * parameters
    # Three steps and what comes before them: a step is no more than a third of the whole.
    assert eight.step_us <= max(eight.finish_us) / 3
    assert "8 ranks" in str(eight) and len(str(eight).splitlines()) == 10


def test_a_slower_machine_takes_longer_for_the_same_numbers(eight):
    slower = simulate(gpt_step, topology="hgx-a100", ranks=8, device="a100")
    assert slower.results == eight.results
    assert slower.step_us > eight.step_us
    more = simulate(gpt_step, 6, topology="hgx-h100", ranks=8)
    assert more.step_us == pytest.approx(eight.step_us, rel=0.05)


def test_the_trace_has_a_row_for_every_rank(eight, tmp_path):
    eight.trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {event["pid"] for event in events} == set(range(8))
    for rank in range(8):
        mine = [event for event in events if event["pid"] == rank]
        computing = sum(event["dur"] for event in mine if event["name"] == "compute")
        assert computing == pytest.approx(eight.compute_us[rank], rel=1e-3)
        reductions = [event for event in mine if "all_reduce" in event["name"]]
        # Several buckets in each of three steps.
        assert len(reductions) >= 6
        assert all(0 <= event["ts"] and event["ts"] + event["dur"] <= eight.finish_us[rank] + 1e-3 for event in mine)
    # Communication runs during computation.
    mine = [event for event in events if event["pid"] == 0]
    spans = lambda which: [(e["ts"], e["ts"] + e["dur"]) for e in mine if which(e["name"])]  # noqa: E731
    computing, sending = spans(lambda name: name == "compute"), spans(lambda name: "all_reduce" in name)
    assert any(a < d and c < b for a, b in computing for c, d in sending)


def test_an_optimiser_in_an_optimiser_makes_one_step():
    run = simulate(programs.zero, topology="hgx-h100", ranks=2)
    assert run.step_us == pytest.approx(run.finish_us[0] / programs.STEPS, rel=0.6)


def test_a_rank_that_raises_is_named():
    def fails():
        if dist.get_rank() == 2:
            raise ZeroDivisionError("rank 2 divides by zero")
        dist.barrier()

    with pytest.raises(ZeroDivisionError, match="divides") as caught:
        simulate(fails, topology="hgx-h100", ranks=4)
    assert caught.value.__notes__ == ["raised by simulated rank 2 of 4"]


@pytest.mark.parametrize(
    "waits",
    [
        lambda: dist.recv(torch.empty(1), 2),
        lambda: dist.distributed_c10d._get_default_store().get("never"),
        lambda: dist.monitored_barrier(),
        lambda: dist.new_group([0, 1]),
    ],
    ids=["a message", "a key", "a monitored barrier", "a group"],
)
def test_nobody_waits_for_a_rank_that_raised(waits):
    def fails():
        if dist.get_rank() == 2:
            raise ZeroDivisionError
        waits()

    begun = time.monotonic()
    with pytest.raises(ZeroDivisionError) as caught:
        simulate(fails, topology="hgx-h100", ranks=3)
    assert caught.value.__notes__ == ["raised by simulated rank 2 of 3"]
    assert time.monotonic() - begun < 30


def test_ranks_that_wait_for_each_other_are_told():
    def waits():
        dist.recv(torch.empty(1), 1 - dist.get_rank())

    with pytest.raises(allfold.AllfoldError, match="wait"):
        simulate(waits, topology="hgx-h100", ranks=2)


def test_a_receive_from_any_rank_names_its_source_where_there_are_several():
    def receives():
        if dist.get_rank() == 0:
            into = torch.empty(1)
            return dist.recv(into), into.item()
        return dist.send(torch.ones(1), 0)

    assert simulate(receives, topology="hgx-h100", ranks=2).results[0] == (1, 1.0)
    with pytest.raises(ValueError, match="a receive names its source"):
        simulate(receives, topology="hgx-h100", ranks=3)


def test_a_second_simulation_at_the_same_time_is_refused():
    begun, end = threading.Event(), threading.Event()

    def first():
        begun.set()
        end.wait(30)

    thread = threading.Thread(target=lambda: simulate(first, topology="hgx-h100", ranks=1))
    thread.start()
    begun.wait(30)
    try:
        with pytest.raises(RuntimeError, match="a simulation is under way in this process"):
            simulate(lambda: 1, topology="hgx-h100", ranks=1)
    finally:
        end.set()
        thread.join()

    def nested():
        return simulate(lambda: 1, topology="hgx-h100", ranks=1)

    with pytest.raises(RuntimeError, match="a simulation is under way in this process"):
        simulate(nested, topology="hgx-h100", ranks=1)
    assert simulate(lambda: dist.get_world_size(), topology="hgx-h100", ranks=2).results == [2, 2]


def test_wrong_machines_and_devices_are_refused_before_anything_runs():
    never = lambda: pytest.fail("it ran")  # noqa: E731
    with pytest.raises(ValueError, match="no-such"):
        simulate(never, topology="no-such-machine")
    with pytest.raises(ValueError, match="no-such"):
        simulate(never, device="no-such-device")
    with pytest.raises(ValueError):
        simulate(never, ranks=0)


def test_the_process_is_as_it_was_afterwards():
    torch.manual_seed(11)
    expected = torch.rand(2)
    torch.manual_seed(11)
    simulate(programs.ddp, topology="hgx-h100", ranks=2)
    assert torch.equal(torch.rand(2), expected)
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match="process group"):
        dist.barrier()
    store = dist.HashStore()
    programs.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert dist.get_backend() == "gloo"
    finally:
        dist.destroy_process_group()


PROGRAM_WITHOUT_END = """
import torch, torch.distributed as dist
from allfold.torch import simulate
def endless():
    print("runs", flush=True)
    x = torch.zeros(4)
    while True:
        dist.all_reduce(x)
try:
    simulate(endless, topology="hgx-h100", ranks=2)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_ends_a_simulation():
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM_WITHOUT_END], stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    try:
        assert process.stdout.readline() == "runs\n"
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
        # The second rank may say that it runs after that.
        assert "interrupted" in rest.splitlines()
        assert process.returncode == 0
    finally:
        process.kill()
