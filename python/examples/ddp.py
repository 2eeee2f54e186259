"""DistributedDataParallel on two CPU ranks, over shared memory.

    allfold launch -n 2 -- python python/examples/ddp.py        (or torchrun --nproc-per-node 2 python/examples/ddp.py)
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import allfold.torch  # registers the backend "allfold"

dist.init_process_group("allfold")
rank, size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)))
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)

inputs = torch.randn(64, 16)
targets = inputs.sum(1, keepdim=True).sin()
mine = slice(rank, None, size)  # each rank trains on its part of the batch

for step in range(3):
    optimiser.zero_grad()
    loss = nn.functional.mse_loss(model(inputs[mine]), targets[mine])
    loss.backward()  # DDP averages the gradients meanwhile
    optimiser.step()
    dist.all_reduce(loss.detach(), op=dist.ReduceOp.AVG)
    if rank == 0:
        print(f"step {step}: loss {loss.item():.4f} over {size} ranks")

dist.destroy_process_group()
