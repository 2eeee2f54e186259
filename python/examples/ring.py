"""A ring in Python: an algorithm that is proved, drawn, simulated on 64 GPUs and run by processes.

    python python/examples/ring.py
"""

import numpy

import allfold
from allfold import Recv, Send


@allfold.algorithm("all_reduce", "my_ring", rounds=lambda ranks: 2 * (ranks - 1))
def my_ring(rank, round, ranks):
    """In every round each rank sends one chunk to the next rank: added on the first way round, replaced on the second."""
    chunk = (rank - round) % ranks
    return (
        Send((rank + 1) % ranks, chunk),
        Recv((rank - 1) % ranks, (chunk - 1) % ranks, reduce=round < ranks - 1),
    )


def use_it():
    """What each process does."""
    with allfold.Communicator() as comm:
        comm.use("all_reduce", "my_ring")
        gradients = numpy.full(6, comm.rank + 1.0)
        comm.all_reduce(gradients, "avg")
        return gradients.tolist()


if __name__ == "__main__":
    print(allfold.verify("all_reduce", algo="my_ring", ranks="1..8"))
    print(allfold.command("show", "all_reduce", algo="my_ring", ranks=3))

    times = allfold.simulate("all_reduce", algo="my_ring", topology="hgx-h100", ranks=64, b="1M", e="16M", f=4)
    for row in times.of("collective"):
        print(f"{row.bytes >> 20:3} MiB on 64 H100: {row.time_us:8.1f} us")

    print(allfold.run(3, use_it))
