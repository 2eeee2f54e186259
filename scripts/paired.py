#!/usr/bin/env python3
"""Compares two builds of `allfold` on one machine, by turns, and prints their medians and ratios as a table.

    scripts/paired.py OLD NEW [--turns 5] [--only WORD]

OLD and NEW are the programs, such as target/release/allfold of two commits. Each turn runs both, one after the other, in
alternating order; the ratio is the median over turns of (new / old), so that a machine that is slow for
a while slows both sides of a turn. `fastest` is the ratio of each side's fastest turn: other programs on the machine only slow
a program, so over many turns this is the time of the program itself. Collectives: two ranks on two cores, out of place. Needs nothing
but Python.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile

SIZES = [("8 B", "8"), ("64 KiB", "64K"), ("64 MiB", "64M")]
PLACES = [
    ("threads", ["--backend", "threads"]),
    ("shm", ["--backend", "shm"]),
    ("tcp", ["--backend", "tcp"]),
    ("tcp, TLS", ["--backend", "tcp", "--security", "tls"]),
]
# A model, its number of steps, its ranks, and its configuration. Keys stand outside of tables, since programs from before there were
# tables read only such keys, and later programs read them too.
SYNTHETIC = {"data": "synthetic", "batch": 16, "momentum": 0.9}
STEPS = [
    ("MLP", 12, 2, {"model": "mlp", "hidden": [1024, 1024], "batch": 256, "lr": 0.01, "momentum": 0.9}),
    (
        "GPT",
        6,
        1,
        {
            "model": "gpt", "layers": 4, "width": 128, "heads": 4, "dropout": 0.1, "positions": 128, "synthetic_classes": 256,
            "optimiser": "adamw", "lr": 1e-3, "weight_decay": 0.1, "clip_norm": 1.0, **SYNTHETIC,
        },
    ),
    ("ResNet-18", 4, 1, {"model": "resnet18", "lr": 0.1, "weight_decay": 5e-4, **SYNTHETIC}),
]
# The same by ddp, as the MLP.
STEPS += [(f"{name} on 2 ranks", count, 2, keys) for name, count, ranks, keys in STEPS if ranks == 1]


def run(program, arguments):
    """What the program writes to standard output."""
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{program} {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


# Seconds of calls in one measurement: in a shorter one it matters on which cores the ranks begin.
MEASURED = 0.7


def collective(arguments, size):
    """Microseconds of an all-reduce."""

    def timed(program, iterations):
        call = ["bench", "all_reduce", *arguments, "--ranks", "2", "-b", size, "-e", size, "-n", str(iterations)]
        for line in run(program, [*call, "--json", "-"]).splitlines():
            record = json.loads(line)
            if record["kind"] == "collective" and not record["in_place"]:
                return record["time_us"]
        sys.exit(f"{program}: no record of the call")

    def measure(program):
        iterations = int(1e6 * MEASURED / timed(program, 100))
        return timed(program, min(max(iterations, 20), 20_000)), 0

    return measure


def simulation(program):
    """Microseconds of simulating a ring over 4,096 ranks."""
    call = "simulate all_reduce --topology switch --ranks 4096 --algo ring -b 1G -e 1G --engine full"
    return 1e6 * float(re.search(r"messages in ([0-9.]+) s of real time", run(program, call.split())).group(1)), 0


def step(count, ranks, keys):
    """Microseconds of a training step: what a run of 2 N steps takes more than one of N, by N. So it does not matter whether a
    program counts its first step, which warms up, in its mean."""

    def total(program, steps):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
            config.writelines(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
            config.flush()
            call = ["train", "--config", config.name, "--ranks", str(ranks), "--steps", str(steps), "--json", "-"]
            lines = run(program, call).splitlines()
        for line in lines:
            record = json.loads(line)
            if record["kind"] == "train" and "time_us" in record:
                return record["time_us"] * steps / count
        sys.exit(f"{program}: no record with the time of a step")

    return lambda program: (total(program, 2 * count), total(program, count))


def rows():
    """What is measured: a name, and a function of the program that returns two times, whose difference counts."""
    for place, arguments in PLACES:
        for name, size in SIZES:
            yield f"all-reduce, {place}, {name}", collective(arguments, size)
    yield "simulate, ring of 4,096 ranks", simulation
    for name, count, ranks, keys in STEPS:
        yield f"step of {name}", step(count, ranks, keys)


def main():
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", default="", help="rows with this in their name")
    chosen = parser.parse_args()
    print(f"| | old, us | new, us | new / old ({chosen.turns} turns) | fastest | of each turn |\n|---|---|---|---|---|---|")
    for name, measure in rows():
        if chosen.only not in name:
            continue
        old, new = [], []
        for turn in range(chosen.turns):
            sides = [(chosen.old, old), (chosen.new, new)]
            for program, times in sides if turn % 2 == 0 else reversed(sides):
                times.append(measure(program))
        fastest = [min(all for all, _ in times) - min(less for _, less in times) for times in (old, new)]
        old, new = [[all - less for all, less in times] for times in (old, new)]
        ratios = [b / a for a, b in zip(old, new)]
        middle = statistics.median
        every = ", ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
        best = fastest[1] / fastest[0]
        print(f"| {name} | {middle(old):,.1f} | {middle(new):,.1f} | {middle(ratios):.3f} | {best:.3f} | {every} |", flush=True)


if __name__ == "__main__":
    main()
