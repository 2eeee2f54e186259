"""The command as functions: flags, tables, plots, errors; and the program that the wheel installs."""

import dataclasses
import importlib.metadata
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

import allfold

BIN = Path(sys.executable).parent


def test_a_command_gives_dataclasses_columns_and_its_text():
    table = allfold.simulate("all_reduce", topology="dgx-h100", ranks=64, b="1M", e="4M")
    rows = table.of("collective")
    assert [row.bytes for row in rows] == [1 << 20, 2 << 20, 4 << 20]
    assert dataclasses.is_dataclass(rows[0]) and type(rows[0]).__name__ == "Collective"
    with pytest.raises(dataclasses.FrozenInstanceError):
        rows[0].bytes = 0
    times = rows["time_us"]
    assert times.dtype == numpy.float64 and (numpy.diff(times) > 0).all()
    assert (times >= rows["bound_us"]).all()
    assert {"collective", "simulator"} == set(table["kind"]) and len(table) == 6 and len(table[:2]) == 2
    assert "virtual" in str(table) and "schema" in table.columns
    assert rows[0].command == "allfold simulate all_reduce --ranks 64 --topology dgx-h100 -b 1M -e 4M"
    with pytest.raises(KeyError, match="no column tiem_us: there are schema, kind"):
        rows.column("tiem_us")


def test_a_simulation_repeats_its_records():
    once, again = (allfold.simulate("broadcast", topology="nodes8", ranks=16, b="1M").of("collective") for _ in "12")
    assert once.lines == again.lines


def test_flags_are_written_as_the_command_line_has_them():
    table = allfold.command(
        "bench", "all_reduce", backend="threads", ranks=2, b="1K", e="1K", n=2, warmup_iters=1, algo=None, check=1
    )
    line = "allfold bench all_reduce --backend threads --ranks 2 -b 1K -e 1K -n 2 --warmup_iters 1 --check 1"
    assert table[0].command == line
    faulty = allfold.simulate("all_reduce", topology="nodes8", ranks=16, b="1M", fault=["slow_rank=3:x2", "slow_rank=5:x2"])
    assert faulty[0].command.count("--fault") == 2
    assert str(allfold.command("verify", help=True)).startswith("Prove every algorithm")


def test_a_wrong_word_is_a_value_error_that_says_what_would_be_right():
    for call, said in [
        (lambda: allfold.simulate("all_reduce", topology="swich", ranks=8), "did you mean `switch`?"),
        (lambda: allfold.verify("all_reduce", algo="rign"), "did you mean `ring`?"),
        (lambda: allfold.verify("all_reduce", rnks=4), "unexpected argument '--rnks'"),
        (lambda: allfold.bench("all_reduce", backend="threads", ranks=-1), "write a whole number, 1 to 1048576"),
        (lambda: allfold.command("verfy"), "verify"),
        (lambda: allfold.predict("resnet51", topology="dgx-a100", ranks=8), "resnet50"),
        (lambda: allfold.command("launch", ranks=2), "COMMAND"),
    ]:
        with pytest.raises(ValueError, match=re.escape(said)) as refused:
            call()
        assert "\n" not in str(refused.value) and not str(refused.value).startswith("error")


def test_predictions_and_machines_are_tables():
    scaling = allfold.predict("resnet50", topology="dgx-a100", ranks=[1, 8, 64, 512])
    assert list(scaling["ranks"]) == [1, 8, 64, 512] and (scaling["efficiency"] <= 1).all()
    assert not scaling["measured"].any()
    assert "dgx-a100" in allfold.machines()["name"]
    assert "NVLink" in str(allfold.machines("dgx-a100"))


def test_plots_are_those_of_the_report(tmp_path):
    scaling = allfold.predict("resnet50", topology="dgx-a100", ranks=[1, 8, 64, 512])
    scaling.plot(tmp_path / "scaling.svg")
    text = (tmp_path / "scaling.svg").read_text()
    assert text.startswith("<svg xmlns=") and text.rstrip().endswith("</svg>") and "ResNet-50" in text
    assert text == next(iter(scaling.plots().values()))
    # The command's own report of these records has the same plots.
    (tmp_path / "records.jsonl").write_text(scaling.lines)
    allfold.command("report", from_=tmp_path / "records.jsonl", out=tmp_path / "report")
    for name, svg in scaling.plots().items():
        assert (tmp_path / "report" / name).read_text() == svg
    curve = allfold.simulate("all_reduce", topology="dgx-h100", ranks=[8, 16, 32, 64], b="64M")
    assert "simulated" in curve.plot()
    with pytest.raises(ValueError, match="three or more rank counts"):
        allfold.simulate("all_reduce", topology="dgx-h100", ranks=8, b="64M").plot()
    with pytest.raises(ValueError, match="no record here can be shown"):
        allfold.machines().plot()


def test_a_command_that_starts_processes_starts_them_from_python(capfd):
    allfold.command("launch", "--", sys.executable, "-c", "import os; print('I am', os.environ['RANK'])", ranks=2)
    said = capfd.readouterr().out
    assert "[rank 0] I am 0" in said and "[rank 1] I am 1" in said
    # Where the program is a command of Allfold, the ranks run this package.
    bench = ["bench", "all_reduce", "--backend", "shm", "--ranks", "2", "-b", "1K", "-e", "1K", "-n", "2"]
    allfold.command("launch", "--", *bench, ranks=2)
    assert "2 ranks as processes that share a segment" in capfd.readouterr().out
    with pytest.raises(allfold.AllfoldError, match="rank 1"):
        allfold.command("launch", "--", sys.executable, "-c", "import os; exit(3 * int(os.environ['RANK']))", ranks=2)


def test_a_launch_leaves_the_signals_of_this_process():
    before = [signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    allfold.command("launch", "--", "true")
    allfold.verify("all_reduce", algo="ring", ranks=4)
    assert before == [signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


def test_ctrl_c_ends_a_long_command(tmp_path):
    code = """if True:
        import signal, threading
        import allfold
        main = threading.get_ident()
        threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT)).start()
        try:
            # An hour.
            allfold.bench("all_reduce", backend="threads", ranks=2, b="32M", n=400000)
        except KeyboardInterrupt:
            print("left")
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr


def test_the_wheel_installs_the_command(tmp_path):
    """The command of the package does what the Rust program does; it is started in a folder without modules of this clone."""

    def run(*words):
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)

    version = run(BIN / "allfold", "--version")
    assert version.returncode == 0 and version.stdout.startswith("allfold 0.1.0")
    assert run(sys.executable, "-m", "allfold", "--version").stdout == version.stdout
    proof = run(BIN / "allfold", "verify", "all_reduce", "--algo", "ring", "--ranks", "4")
    assert proof.returncode == 0 and "1 of 1 proofs hold" in proof.stdout
    wrong = run(BIN / "allfold", "verify", "all_reduce", "--algo", "rign")
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: ") and wrong.stderr.count("\n") == 1
    assert allfold.__version__ == importlib.metadata.version("allfold")


def test_importing_allfold_is_fast_and_takes_neither_numpy_nor_torch(tmp_path):
    code = """if True:
        import sys, time
        begun = time.perf_counter()
        import allfold
        milliseconds = (time.perf_counter() - begun) * 1e3
        slow = {"numpy", "torch", "dataclasses", "inspect", "pickle", "subprocess", "ctypes", "multiprocessing"}
        print(f"{milliseconds:.1f}", *sorted(slow & set(sys.modules)))
    """
    took = []
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
        milliseconds, *modules = done.stdout.split()
        assert modules == []
        took.append(float(milliseconds))
    print(f"import allfold: {min(took):.1f} ms, the least of 5")
