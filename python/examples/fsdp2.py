"""FSDP2 on four CPU ranks: each keeps a quarter of every parameter, of its gradient and of the optimiser's state.

    allfold launch -n 4 -- python python/examples/fsdp2.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import allfold.torch  # registers the backend "allfold"

dist.init_process_group("allfold")
rank, size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4)), nn.Linear(64, 10))
whole = sum(parameter.numel() for parameter in model.parameters())

mesh = init_device_mesh("cpu", (size,))
for block in model:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
kept = sum(parameter.to_local().numel() for parameter in model.parameters())
optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)

for step in range(3):
    torch.manual_seed(100 * step + rank)  # other samples on each rank
    inputs = torch.randn(8, 64)
    loss = nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1))
    loss.backward()
    optimiser.step()
    optimiser.zero_grad()
    mean = loss.detach().clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    if rank == 0:
        print(f"step {step}: loss {mean.item():.3f}")

if rank == 0:
    print(f"{whole} parameters, {kept} of them on rank 0 of {size}")
dist.destroy_process_group()
