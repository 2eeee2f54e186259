"""The ``allfold`` command as functions: its flags are keyword arguments, its records a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ._allfold import AllfoldError, capture, plots

if TYPE_CHECKING:
    import os

    import numpy

# Flags that are repeated for each value.
_REPEATED = {"fault", "set", "without"}
# Flags of nccl-tests, which have underscores.
_UNDERSCORED = {"local_register", "warmup_iters"}
_CLASSES: dict[tuple[str, tuple[str, ...]], type] = {}


def _row(record: dict[str, Any]) -> Any:
    """A record as an instance of a frozen dataclass that is named after its kind."""
    names = tuple(name for name in record if name.isidentifier())
    kind = str(record.get("kind", "record"))
    made = _CLASSES.get((kind, names))
    if made is None:
        # Imported here, like all modules that would make `import allfold` slow.
        import dataclasses

        title = "".join(part.capitalize() for part in kind.split("_"))
        made = dataclasses.make_dataclass(title, names, frozen=True)
        _CLASSES[kind, names] = made
    return made(**{name: record[name] for name in names})


class Table(Sequence[Any]):
    """The records of a command: a sequence of dataclass instances, with columns and plots.

    ``text`` is what the command prints, ``lines`` the records as lines of JSON, which ``allfold report --from`` reads.
    ``str(table)`` is the text.
    """

    def __init__(self, text: str, lines: str) -> None:
        import json

        self.text = text
        self.lines = lines
        self.rows = [_row(json.loads(line)) for line in lines.splitlines()]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: Any) -> Any:
        """A row by its index, several rows by a slice, or a column by its name."""
        return self.column(at) if isinstance(at, str) else self.rows[at]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def __str__(self) -> str:
        return self.text.rstrip("\n")

    def __repr__(self) -> str:
        kinds = ", ".join(sorted({type(row).__name__ for row in self.rows}))
        return f"<Table of {len(self.rows)} rows: {kinds or 'none'}>"

    @property
    def columns(self) -> list[str]:
        """The names of the columns, those of all kinds of rows."""
        names: dict[str, None] = {}
        for row in self.rows:
            names.update(dict.fromkeys(row.__dataclass_fields__))
        return list(names)

    def column(self, name: str) -> numpy.ndarray:
        """The column of this name as an array; rows that lack it are left out.

        Raises:
            KeyError: no row has this column; the message lists the columns that exist.
        """
        import numpy

        values = [getattr(row, name) for row in self.rows if hasattr(row, name)]
        if not values:
            raise KeyError(f"no column {name}: there are {', '.join(self.columns)}")
        flat = not any(isinstance(value, (list, dict)) for value in values)
        return numpy.array(values if flat else values, dtype=None if flat else object)

    def of(self, kind: str) -> Table:
        """The rows of one kind of record."""
        import json

        lines = [line for line in self.lines.splitlines() if json.loads(line).get("kind") == kind]
        return Table(self.text, "\n".join(lines))

    def plots(self) -> dict[str, str]:
        """The plots that ``allfold report`` would make of these records: names of files, and the text of each as SVG.

        Raises:
            ValueError: a report shows no records of these kinds.
        """
        return dict(plots(self.lines))

    def plot(self, path: str | os.PathLike[str] | None = None) -> str:
        """The first of :meth:`plots`, as SVG; it is also written to ``path``, if one is given.

        Raises:
            ValueError: these records have no plot.
        """
        made = next(iter(self.plots().values()), None)
        if made is None:
            raise ValueError("these records have no plot; those of three or more rank counts have one")
        if path is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(made)
        return made


def _words(name: str, arguments: Iterable[Any], flags: dict[str, Any]) -> list[str]:
    """The command line for a call. An argument ``"--"`` and the arguments after it come last, after the flags."""
    given = [str(argument) for argument in arguments if argument is not None]
    split = given.index("--") if "--" in given else len(given)
    words = [name, *given[:split]]
    for name, value in flags.items():
        if value is None or value is False:
            continue
        flag = name if name in _UNDERSCORED else name.rstrip("_").replace("_", "-")
        flag = f"-{flag}" if len(flag) == 1 else f"--{flag}"
        several = isinstance(value, (list, tuple, range))
        if value is True:
            words.append(flag)
            continue
        repeated = list(value) if several and name in _REPEATED else [value]
        for part in repeated:
            text = ",".join(str(one) for one in part) if isinstance(part, (list, tuple, range)) else str(part)
            # A value that begins with a dash would be taken for a flag.
            words.extend([f"{flag}={text}"] if text.startswith("-") else [flag, text])
    return words + given[split:]


def command(name: str, *arguments: Any, **flags: Any) -> Table:
    """Any command: ``command("bench", "all_reduce", ranks=4)`` is ``allfold bench all_reduce --ranks 4``.

    A flag ``--a-b`` is ``a_b``, ``-b`` is ``b``; ``True`` gives a flag without a value, ``None`` and ``False`` leave it out. A list
    is joined by commas; for ``fault``, ``set`` and ``without`` the flag is repeated for each part. ``allfold NAME --help`` explains
    the flags, and so does ``print(command(NAME, help=True))``.

    The command runs in this process and prints nothing; ``launch`` runs in a process of its own, and what its ranks print is
    printed: ``command("launch", "--", "python", "train.py", ranks=4)``.

    Raises:
        ValueError: a flag or value is wrong; the message says what would be right.
        AllfoldError: a check or the run failed.
    """
    words = _words(name, arguments, flags)
    if name == "launch":
        return _launched(words)
    return Table(*capture(words))


def _launched(words: list[str]) -> Table:
    """Launches ranks. The launcher handles signals itself, so it runs in a process of its own."""
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-P", "-m", "allfold", *words], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        sys.stderr.write(done.stderr)
        return Table("", "")
    line = (done.stderr.strip().splitlines() or [f"the launcher ended with exit code {done.returncode}"])[-1]
    sys.stderr.write(done.stderr)
    line = line.removeprefix("error: ")
    raise ValueError(line) if done.returncode == 2 else AllfoldError(line)


def verify(collective: str | None = None, **flags: Any) -> Table:
    """Proves algorithms, for every requested rank count: ``verify("all_reduce", algo="ring", ranks="1..16")``.

    Raises:
        AllfoldError: an algorithm is wrong; the message is a counterexample.
    """
    return command("verify", collective, **flags)


def simulate(collective: str, *, ranks: int | Iterable[int], **flags: Any) -> Table:
    """Times a collective on a simulated machine: ``simulate("all_reduce", topology="dgx-h100", ranks=64, b="1K", e="1G")``.

    Several ``ranks`` are simulated one after the other, into one table.
    """
    if isinstance(ranks, Iterable) and not isinstance(ranks, str):
        tables = [command("simulate", collective, ranks=count, **flags) for count in ranks]
        return Table("".join(table.text for table in tables), "".join(table.lines for table in tables))
    return command("simulate", collective, ranks=ranks, **flags)


def bench(collective: str, **flags: Any) -> Table:
    """Measures a collective on real data of this machine: ``bench("all_reduce", backend="shm", ranks=2)``."""
    return command("bench", collective, **flags)


def predict(workload: str | None = None, **flags: Any) -> Table:
    """Predicts how training scales.

    ``predict("resnet50", topology="dgx-a100", ranks=[1, 8, 64])`` is ``allfold scale workload resnet50 ..``: a network by its
    table of layers. Without a workload it is ``allfold scale``: a training run by its configuration, ``config="run.toml"``.
    """
    return command("scale", *([] if workload is None else ["workload", workload]), **flags)


def machines(name: str | None = None, **flags: Any) -> Table:
    """The machines that ``topology`` takes by name, or all figures of one machine, with their sources."""
    return command("machines", name, **flags)
