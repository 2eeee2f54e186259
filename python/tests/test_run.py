"""Processes that a function is run in: their results, and how each failure is reported."""

import atexit
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import allfold


def place(*arguments):
    return os.environ["RANK"], os.environ["WORLD_SIZE"], arguments


def test_results_come_in_order_of_ranks():
    assert allfold.run(3, place, "a", 2) == [(str(rank), "3", ("a", 2)) for rank in range(3)]


class Odd(Exception):
    pass


def raises():
    with allfold.Communicator() as comm:
        if comm.rank == 1:
            raise Odd("rank 1 will not")
        comm.barrier()


def test_a_rank_that_raises_is_named_with_its_exception(capfd):
    with pytest.raises(allfold.RankError) as failed:
        allfold.run(2, raises)
    assert failed.value.rank == 1 and isinstance(failed.value.error, Odd)
    assert str(failed.value) == "rank 1 failed: Odd: rank 1 will not"
    assert failed.value.__cause__ is failed.value.error
    # What the ranks print is passed on, marked by rank: the traceback is there.
    assert "[rank 1]" in capfd.readouterr().err


def raises_and_ends_late():
    with allfold.Communicator() as comm:
        if comm.rank == 1:
            # The traceback is printed, and the process gone, long after rank 0's.
            atexit.register(time.sleep, 3)
            raise Odd("rank 1 will not")
        comm.barrier()


def test_the_rank_that_raised_is_named_although_another_ended_first():
    with pytest.raises(allfold.RankError, match="rank 1 failed: Odd: rank 1 will not"):
        allfold.run(3, raises_and_ends_late)


def leaves_early():
    with allfold.Communicator() as comm:
        if comm.rank == 0:
            comm.barrier()


def test_a_rank_that_leaves_early_is_named_by_the_one_that_waits():
    with pytest.raises(allfold.RankError, match="rank 0 failed: PeerLostError: rank 1 is lost: it returned early") as failed:
        allfold.run(2, leaves_early)
    assert isinstance(failed.value.error, allfold.PeerLostError)


def raises_something_that_cannot_be_pickled():
    class Local(Exception):
        pass

    raise Local("only here")


def test_an_exception_that_cannot_be_pickled_is_told_by_its_text():
    with pytest.raises(allfold.RankError, match="rank 0 failed: Local: only here") as failed:
        allfold.run(1, raises_something_that_cannot_be_pickled)
    assert failed.value.error is None


def dies():
    with allfold.Communicator() as comm:
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.barrier()


def test_a_rank_that_dies_is_named():
    with pytest.raises(allfold.RankError) as failed:
        allfold.run(3, dies)
    assert failed.value.rank == 1 and failed.value.error is None
    assert str(failed.value) == "rank 1 failed first, killed by SIGKILL"


@pytest.mark.parametrize("code", [7, 0])
def test_a_rank_that_exits_is_a_failure(code):
    """Also with exit code 0, since the rank leaves no result."""
    with pytest.raises(allfold.RankError, match=f"rank 0 failed: SystemExit: {code}"):
        allfold.run(1, sys.exit, code)


def unpicklable():
    return lambda: None


def test_a_result_that_cannot_be_pickled_is_a_failure():
    with pytest.raises(allfold.RankError, match="pickle"):
        allfold.run(1, unpicklable)


def test_no_ranks_are_refused():
    with pytest.raises(ValueError, match="'2' ranks cannot run anything; give 1 or more, as a whole number"):
        allfold.run("2", os.getpid)
    with pytest.raises(ValueError, match="0 ranks cannot run anything; give 1 or more"):
        allfold.run(0, place)


def test_a_script_runs_its_own_function(tmp_path):
    """The function is in the script itself; the working directory has another `allfold`."""
    (tmp_path / "allfold").mkdir()
    (tmp_path / "elsewhere").mkdir()
    script = tmp_path / "elsewhere" / "script.py"
    script.write_text(
        textwrap.dedent("""
            import allfold

            def rank_times(factor):
                with allfold.Communicator() as comm:
                    return comm.rank * factor

            if __name__ == "__main__":
                print(allfold.run(2, rank_times, 10))
        """)
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[0, 10]\n"), done.stderr


def test_ranks_share_the_cores_unless_the_user_has_set_their_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    share = max(len(os.sched_getaffinity(0)) // 2, 1)
    assert all(1 <= int(threads) <= share for threads in allfold.run(2, os.getenv, "OMP_NUM_THREADS"))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert allfold.run(2, os.getenv, "OMP_NUM_THREADS") == ["3", "3"]
