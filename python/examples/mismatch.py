"""Two ranks that disagree: rank 1 reduces one element more. Both get an error that names both calls and their lines.

    allfold launch -n 2 -- python python/examples/mismatch.py
"""

import torch
import torch.distributed as dist

import allfold.torch  # registers the backend "allfold"

dist.init_process_group("allfold")
loss = torch.ones(10 + dist.get_rank())
try:
    dist.all_reduce(loss)
except allfold.MismatchError as error:
    print(error, flush=True)
