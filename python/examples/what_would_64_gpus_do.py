"""What would 64 GPUs do? A training function for one's own module, on simulated H100s: real numbers, virtual time.

    python python/examples/what_would_64_gpus_do.py

Eight machines of eight GPUs train the module by DDP; beside them, one machine alone. The losses are those of a real run; the times
are predictions, and do not depend on the machine that this program runs on.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import allfold.torch


class Mine(nn.Module):
    """One's own module."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x).relu()
        return x


def train(steps):
    """The same function that a process of torchrun would run."""
    dist.init_process_group("allfold")
    torch.manual_seed(0)
    model = DistributedDataParallel(Mine(), bucket_cap_mb=0.5)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(1 + dist.get_rank())
    inputs = torch.randn(16, 256)
    for _ in range(steps):
        loss = model(inputs).square().mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    return loss.item()


if __name__ == "__main__":
    for ranks in (8, 64):
        run = allfold.torch.simulate(train, 3, topology="hgx-h100", ranks=ranks, device="h100")
        exposed = run.exposed_us[0] / run.finish_us[0]
        print(f"{ranks:3} H100: {run.step_us:6.1f} us a step, {exposed:4.0%} of it waiting; loss of rank 0 {run.results[0]:.4f}")
        run.trace(f"step-of-{ranks}.json")  # for chrome://tracing or Perfetto
