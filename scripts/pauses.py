#!/usr/bin/env python3
"""Pauses whole jobs for longer than every sign of life is waited for, and expects that each of them goes on.

    cargo build --release && scripts/pauses.py [JOBS] [SECONDS]

Starts JOBS jobs (50) of 2 ranks over TCP, half of them without shared memory and with large messages. Stops every process of
each job by SIGSTOP at a moment that a seed determines, continues them SECONDS (30) later, and waits for their ends. Prints a table;
exits with 1 if a job failed. ALLFOLD names another program than target/release/allfold.
"""

import os
import random
import signal
import subprocess
import sys
import time

JOBS = int(sys.argv[1]) if len(sys.argv) > 1 else 50
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 30.0
ALLFOLD = os.environ.get("ALLFOLD", "target/release/allfold")
# The size of a message, whether ranks of one host share memory, and more operations than a job makes before it is ended.
SIZES = {"small, shared memory": ("8", "on", "3000000"), "large, sockets": ("64M", "off", "100000")}


def processes(root):
    """The process of this number and all of its descendants."""
    found, new = [], [root]
    while new:
        process = new.pop()
        found.append(process)
        try:
            for thread in os.listdir(f"/proc/{process}/task"):
                with open(f"/proc/{process}/task/{thread}/children", encoding="ascii") as children:
                    new += [int(child) for child in children.read().split()]
        except OSError:
            pass
    return found


def send(process, number):
    try:
        os.kill(process, number)
    except ProcessLookupError:
        pass


def start(size, shared, count):
    words = ["bench", "all_reduce", "-b", size, "-e", size, "-n", count, "--backend", "tcp"]
    environment = {**os.environ, "ALLFOLD_SHARED_MEMORY": shared}
    return subprocess.Popen([ALLFOLD, "launch", "-n", "2", "--", *words], env=environment,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def main():
    draws = random.Random(7)
    jobs = []
    for number in range(JOBS):
        kind = list(SIZES)[number % 2]
        job = start(*SIZES[kind])
        # The launcher, the guard and two ranks; and time for the ranks to get into their operations.
        while len(processes(job.pid)) < 4:
            time.sleep(0.01)
        time.sleep(1 + draws.random())
        stopped = processes(job.pid)
        for process in stopped:
            send(process, signal.SIGSTOP)
        jobs.append((kind, job, stopped, time.monotonic()))
    failed = dict.fromkeys(SIZES, 0)
    for kind, job, stopped, since in jobs:
        time.sleep(max(0.0, since + SECONDS - time.monotonic()))
        draws.shuffle(stopped)
        for process in stopped:
            send(process, signal.SIGCONT)
        # A rank that lost another ends the job at once. The benchmark would run for minutes.
        time.sleep(3)
        if job.poll() is not None:
            failed[kind] += 1
            print(f"{kind}: {job.stderr.read().strip()}", file=sys.stderr)
        job.send_signal(signal.SIGTERM)
        job.communicate()
    print(f"| jobs of 2 ranks, paused for {SECONDS:g} s or more | jobs | lost |\n|---|---|---|")
    for kind, lost in failed.items():
        print(f"| {kind} | {sum(kind == other for other, *_ in jobs)} | {lost} |")
    sys.exit(any(failed.values()))


if __name__ == "__main__":
    main()
