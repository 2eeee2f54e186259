"""ResNet-18 on CIFAR-10 in PyTorch, for a loss curve to compare with Allfold's: the same first weights, batches and optimiser.

python torch_cifar.py DATA STEPS THREADS START LOSSES

Reads DATA/data_batch_[1-5].png, train_lables.json, test_batch.png and test_lables.json (`python3 python/allfold/fetch.py cifar10`),
writes the first weights to START (safetensors, by torchvision's names) and a line of JSON with step and loss for each
step to LOSSES, and prints seconds and the share of the test pictures that it classifies right.
experiments/configs/cifar-compare.toml is the other side.
"""
import json
import sys
import time

import numpy
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file

from torch_step import ResNet18

BATCH = 32


def torchvision_name(name):
    if name.startswith("blocks."):
        _, block, rest = name.split(".", 2)
        return f"layer{int(block) // 2 + 1}.{int(block) % 2}.{rest}"
    return name


def pictures(path):
    """One picture a row of the strip, 1,024 pixels of three colours, as [N, 3, 32, 32], normalised."""
    rows = numpy.asarray(Image.open(path).convert("RGB"))
    x = torch.tensor(rows).permute(0, 2, 1).reshape(-1, 3, 32, 32).float() / 255
    mean, deviation = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    return (x - mean.view(1, 3, 1, 1)) / deviation.view(1, 3, 1, 1)


def main():
    data, steps, threads, start, losses = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    x = torch.cat([pictures(f"{data}/data_batch_{n}.png") for n in range(1, 6)])
    y = torch.tensor(json.load(open(f"{data}/train_lables.json")))
    model = ResNet18()
    save_file({torchvision_name(name): tensor for name, tensor in model.state_dict().items()}, start)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    start_of_training = time.time()
    with open(losses, "w") as out:
        for step in range(steps):
            part = slice(step * BATCH, (step + 1) * BATCH)
            optimiser.zero_grad()
            loss = F.cross_entropy(model(x[part]), y[part])
            loss.backward()
            optimiser.step()
            print(json.dumps({"step": step, "loss": loss.item()}), file=out, flush=True)
    seconds = time.time() - start_of_training
    x, y = pictures(f"{data}/test_batch.png"), torch.tensor(json.load(open(f"{data}/test_lables.json")))
    model.eval()
    with torch.no_grad():
        right = sum((model(a).argmax(1) == b).sum().item() for a, b in zip(x.split(100), y.split(100)))
    print(json.dumps({"seconds": round(seconds, 1), "test_accuracy": right / len(y)}))


main()
