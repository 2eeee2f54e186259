"""Algorithms in Python: proved, simulated and run by the same names as Allfold's own; wrong ones are refused."""

import itertools

import numpy
import pytest

import allfold
from allfold import Recv, Send

NUMBER = itertools.count()


def fresh(name: str) -> str:
    """A name that no algorithm has yet: an algorithm lasts as long as its process."""
    return f"{name}_{next(NUMBER)}"


def ring(name):
    """An all-gather by a ring, under this name."""

    @allfold.algorithm("all_gather", name, rounds=lambda ranks: ranks - 1)
    def step(rank, round, ranks):
        sent, received = (rank - round) % ranks, (rank - round - 1) % ranks
        return Send((rank + 1) % ranks, sent), Recv((rank - 1) % ranks, received)


def reducing_ring(name):
    @allfold.algorithm("all_reduce", name, rounds=lambda ranks: 2 * (ranks - 1))
    def step(rank, round, ranks):
        sent = (rank - round) % ranks
        return (
            Send((rank + 1) % ranks, sent),
            Recv((rank - 1) % ranks, (sent - 1) % ranks, reduce=round < ranks - 1),
        )


def test_a_ring_is_proved_for_many_rank_counts():
    name = fresh("ring")
    ring(name)
    proofs = allfold.verify("all_gather", algo=name, ranks="1..16")
    assert list(proofs["ranks"]) == list(range(1, 17)) and proofs["ok"].all()
    assert list(proofs["rounds"]) == list(range(16))


def test_a_ring_takes_the_time_of_allfolds_own():
    name = fresh("ring")
    reducing_ring(name)
    call = {"topology": "dgx-h100", "ranks": 8, "b": "64M", "engine": "full"}
    mine, own = (allfold.simulate("all_reduce", algo=algo, **call)[0] for algo in (name, "ring"))
    assert mine.time_us == own.time_us and mine.algorithm == name


def use_ring(name):
    reducing_ring(name)
    with allfold.Communicator() as communicator:
        communicator.use("all_reduce", name)
        mine = numpy.arange(1000.0) * (communicator.rank + 1)
        communicator.all_reduce(mine)
        return mine


def test_a_ring_runs_on_processes():
    for result in allfold.run(3, use_ring, fresh("ring")):
        assert (result == numpy.arange(1000.0) * 6).all()


def test_a_wrong_ring_is_refused_with_a_counterexample():
    name = fresh("wrong")

    @allfold.algorithm("all_gather", name, rounds=lambda ranks: ranks - 1)
    def step(rank, round, ranks):
        return Send((rank + 1) % ranks, (rank - round) % ranks), Recv((rank - 1) % ranks, (rank - round) % ranks)

    with pytest.raises(allfold.AllfoldError, match="rank 0, chunk 0: expected chunk 0 of rank 0, found 3 of chunk 3"):
        allfold.verify("all_gather", algo=name, ranks=4)


def test_a_send_without_a_receive_is_refused():
    name = fresh("deaf")

    @allfold.algorithm("all_gather", name, rounds=1)
    def step(rank, round, ranks):
        return (Send(1, 0), None) if rank == 0 else None

    with pytest.raises(allfold.AllfoldError, match="rank"):
        allfold.verify("all_gather", algo=name, ranks=2)


def test_what_a_step_raises_is_raised_by_the_command_that_asked():
    name = fresh("raises")

    @allfold.algorithm("all_gather", name, rounds=1)
    def step(rank, round, ranks):
        raise LookupError("no step")

    with pytest.raises(LookupError, match="no step"):
        allfold.verify("all_gather", algo=name, ranks=4)
    with pytest.raises(LookupError, match="no step"):
        allfold.simulate("all_gather", algo=name, topology="switch", ranks=4, b="1K")
    # Nothing is left for a command that has nothing to do with it.
    assert allfold.verify("all_gather", algo="ring", ranks=4)["ok"].all()


def use_raising(name):
    @allfold.algorithm("all_reduce", name, rounds=1)
    def step(rank, round, ranks):
        raise LookupError(f"no step of {rank}")

    caught = []
    with allfold.Communicator() as communicator:
        try:
            communicator.use("all_reduce", name)
        except LookupError as error:
            caught.append(str(error))
        # The group has not failed: it works with another algorithm.
        one = numpy.ones(4)
        communicator.all_reduce(one)
        caught.append(one.tolist())
    # And no later command gets the exception.
    caught.append(len(allfold.verify("all_reduce", algo="ring", ranks=2)))
    return caught


def test_what_a_step_raises_is_raised_where_a_communicator_chooses_it():
    assert allfold.run(2, use_raising, fresh("raises")) == [["no step of 0", [2.0] * 4, 1]] * 2


def leave_a_failure(name):
    @allfold.algorithm("all_reduce", name, rounds=1)
    def step(rank, round, ranks):
        raise LookupError("no step")

    with allfold.Communicator() as communicator:
        # Not by `use`, which would have raised.
        communicator._native.use_algorithm("all_reduce", name)
        communicator.all_reduce(numpy.ones(1))
    return bool(allfold.verify("all_reduce", algo="ring", ranks=3)["ok"].all())


def test_a_failure_of_a_communicator_is_not_raised_by_a_later_command():
    assert allfold.run(1, leave_a_failure, fresh("raises")) == [True]


def test_steps_are_asked_for_once():
    name, asked = fresh("counted"), []

    @allfold.algorithm("all_gather", name, rounds=lambda ranks: ranks - 1)
    def step(rank, round, ranks):
        asked.append((rank, round, ranks))
        return Send((rank + 1) % ranks, (rank - round) % ranks), Recv((rank - 1) % ranks, (rank - round - 1) % ranks)

    for _ in range(2):
        allfold.verify("all_gather", algo=name, ranks=[3, 4])
    assert sorted(asked) == [(rank, round, n) for rank in range(4) for round in range(3) for n in (3, 4)
                             if rank < n and round < n - 1]  # fmt: skip


def test_a_function_of_rank_and_round_is_for_one_number_of_ranks():
    name = fresh("pairs")

    @allfold.algorithm("all_gather", name, rounds=3, ranks=8, chunks=8)
    def step(rank, round):
        """Recursive doubling: in round k, blocks of 2^k are exchanged with the rank whose bit k differs."""
        size = 1 << round
        peer = rank ^ size
        return Send(peer, rank // size * size, size), Recv(peer, peer // size * size, size)

    assert allfold.verify("all_gather", algo=name, ranks=8)["ok"].all()
    with pytest.raises(ValueError, match="for 8 ranks alone, and 4 were asked for"):
        allfold.verify("all_gather", algo=name, ranks=4)


def test_a_function_with_a_root_gets_each_root():
    name = fresh("star")

    @allfold.algorithm("broadcast", name, rounds=lambda ranks: ranks - 1, chunks=1)
    def step(rank, round, ranks, root):
        to = (root + round + 1) % ranks
        return (Send(to, 0), None) if rank == root else (None, Recv(root, 0)) if rank == to else None

    assert allfold.verify("broadcast", algo=name, ranks="1..5")["ok"].all()


def test_a_function_that_takes_something_else_is_refused_when_it_is_added():
    for collective, step, more, said in [
        ("all_gather", lambda rank, round: None, {}, "give ranks=N"),
        ("all_gather", lambda rank: None, {"ranks": 4}, "step(rank, round)"),
        ("broadcast", lambda rank, round, ranks: None, {}, "step(rank, round, ranks, root)"),
    ]:
        with pytest.raises(TypeError) as refused:
            allfold.algorithm(collective, fresh("odd"), rounds=1, **more)(step)
        assert said in str(refused.value)
    with pytest.raises(ValueError, match="all_gather"):
        allfold.algorithm("all_gathr", fresh("odd"), rounds=1)
    with pytest.raises(ValueError, match="ring"):
        allfold.algorithm("all_gather", "ring", rounds=1)(lambda rank, round, ranks: None)


def test_steps_that_cannot_be_are_named():
    for given, said in [
        ((Send(9, 0), None), "step(rank=0, round=0, ranks=2): its peer 9 is outside the group: its ranks are 0 to 1"),
        ((Send(1, 1, 2), None), "2 chunks from 1 on are not among the 2 chunks"),
        ((None, Recv(1, 0, 0)), "0 chunks from 0 on"),
        (Send(1, 0), "it gives Send(to=1, chunk=0, chunks=1); it must give None, or a pair"),
        ((Send(1, -1), None), "it gives (Send(to=1, chunk=-1"),
    ]:
        name = fresh("impossible")
        allfold.algorithm("all_gather", name, rounds=1)(lambda rank, round, ranks, given=given: given)
        with pytest.raises(ValueError) as refused:
            allfold.verify("all_gather", algo=name, ranks=2)
        assert said in str(refused.value)
    for shape, said in [({"rounds": 1, "chunks": 0}, "0 chunks"), ({"rounds": 1 << 40}, "more than 20000000 steps")]:
        name = fresh("impossible")
        allfold.algorithm("all_gather", name, **shape)(lambda rank, round, ranks: None)
        with pytest.raises(ValueError, match=said):
            allfold.verify("all_gather", algo=name, ranks=2)
