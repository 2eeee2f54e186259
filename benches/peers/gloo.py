"""Collectives of PyTorch's Gloo backend over loopback, for comparison with `allfold bench --backend tcp`.

    torchrun --standalone --nproc-per-node 2 benches/peers/gloo.py all_reduce 4096 1048576 67108864

Prints, per size, the median over calls of the slowest rank's time. Sizes are nccl-tests': bytes of the whole buffer.
`benches/peers/gloo.sh` installs what this needs into a virtual environment and runs both sides.
"""

import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    name, sizes = sys.argv[1], [int(word) for word in sys.argv[2:]]
    for size in sizes:
        count = size // 4 // ranks * ranks
        data, part = torch.ones(count), torch.ones(count // ranks)
        call = {
            "all_reduce": lambda: dist.all_reduce(data, op=dist.ReduceOp.MAX),
            "broadcast": lambda: dist.broadcast(data, 0),
            "all_gather": lambda: dist.all_gather_into_tensor(data, part),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, data),
        }[name]
        for _ in range(3):
            call()
        times, begun = [], time.perf_counter()
        while True:
            dist.barrier()
            start = time.perf_counter()
            call()
            took = time.perf_counter() - start
            late = float(time.perf_counter() - begun > 1.0)
            both = torch.tensor([took, late], dtype=torch.float64)
            dist.all_reduce(both, op=dist.ReduceOp.MAX)
            times.append(both[0].item())
            if len(times) >= 400 or (len(times) >= 5 and both[1].item() > 0):
                break
        times.sort()
        if dist.get_rank() == 0:
            print(f"gloo {name} {ranks} ranks {count * 4:>12} bytes {times[len(times) // 2] * 1e6:>12.1f} us", flush=True)
    dist.destroy_process_group()


main()
