"""One training step of five models in PyTorch: what `cargo bench -p allfold-trainer --bench peer` times in Allfold.

python torch_step.py MODEL THREADS                                      MODEL: mlp, gpt, resnet18, resnet50, resnet34-fc   prints one line of JSON
python -m torch.distributed.run --nproc-per-node 2 torch_step.py MODEL THREADS [fsdp]      the same over gloo, as rank 0 sees it:
                                                                        by DDP, or by fully_shard of each block and of the rest
"""
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def mlp():
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        short = [] if same else [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)]
        self.downsample = nn.Sequential(*short)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class ResNet18(nn.Module):
    """With the stem for CIFAR: 3x3, stride 1, no pooling."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
        blocks, inputs = [], 64
        for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
            inputs = outputs
        self.blocks, self.fc = nn.Sequential(*blocks), nn.Linear(512, 10)

    def forward(self, x):
        return self.fc(self.blocks(F.relu(self.bn1(self.conv1(x)))).mean((2, 3)))


class Bottleneck(nn.Module):
    def __init__(self, inputs, middle, stride):
        super().__init__()
        outputs = 4 * middle
        self.conv1, self.bn1 = nn.Conv2d(inputs, middle, 1, bias=False), nn.BatchNorm2d(middle)
        self.conv2, self.bn2 = nn.Conv2d(middle, middle, 3, stride, 1, bias=False), nn.BatchNorm2d(middle)
        self.conv3, self.bn3 = nn.Conv2d(middle, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        short = [] if same else [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)]
        self.downsample = nn.Sequential(*short)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class ResNet50(nn.Module):
    """With the stem for ImageNet: 7x7, stride 2, and a pooling."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        blocks, inputs = [], 64
        for middle, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for block in range(count):
                blocks.append(Bottleneck(inputs, middle, stride if block == 0 else 1))
                inputs = 4 * middle
        self.blocks, self.fc = nn.Sequential(*blocks), nn.Linear(2048, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.fc(self.blocks(x).mean((2, 3)))


class ResNet34(nn.Module):
    """With the stem for ImageNet; all layers but the last are frozen, as for fine-tuning."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        blocks, inputs = [], 64
        for outputs, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for block in range(count):
                blocks.append(Block(inputs, outputs, stride if block == 0 else 1))
                inputs = outputs
        self.blocks, self.fc = nn.Sequential(*blocks), nn.Linear(512, 5)
        self.requires_grad_(False)
        self.fc.requires_grad_(True)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.fc(self.blocks(x).mean((2, 3)))


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.back = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, positions, width = x.shape
        parts = self.c_attn(self.ln_1(x)).split(width, 2)
        q, k, v = (part.view(batch, positions, self.heads, -1).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.c_proj(y)
        return x + self.back(F.gelu(self.c_fc(self.ln_2(x))))


class Gpt(nn.Module):
    def __init__(self, vocabulary=1024, width=128, heads=4, layers=4, positions=128):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.h = nn.Sequential(*[GptBlock(width, heads) for _ in range(layers)])
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        return self.lm_head(self.ln_f(self.h(x))).flatten(0, 1)


def distributed(model, optimiser, strategy, ranks):
    """The model as this rank trains it, and an optimiser over its parameters. `fsdp` is for the gpt."""
    if strategy == "ddp":
        return nn.parallel.DistributedDataParallel(model), optimiser
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (ranks,))
    for block in model.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=optimiser.param_groups[0]["lr"])


def main():
    name, threads = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if name == "mlp":
        model, warm, steps = mlp(), 200, 2000
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
        x, y = torch.randn(64, 784), torch.randint(0, 10, (64,))
    elif name == "gpt":
        model, warm, steps = Gpt(), 6, 40
        optimiser = torch.optim.AdamW(model.parameters(), lr=3e-4)
        x, y = torch.randint(0, 1024, (8, 128)), torch.randint(0, 1024, (8 * 128,))
    elif name == "resnet34-fc":
        model, warm, steps = ResNet34(), 1, 5
        optimiser = torch.optim.Adam(model.fc.parameters(), lr=0.003)
        x, y = torch.randn(16, 3, 224, 224), torch.randint(0, 5, (16,))
    else:
        model, (samples, side) = (ResNet50(), (8, 64)) if name == "resnet50" else (ResNet18(), (32, 32))
        warm, steps = 2, 12
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        x, y = torch.randn(samples, 3, side, side), torch.randint(0, 10, (samples,))
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    strategy = sys.argv[3] if len(sys.argv) > 3 else "ddp"
    if ranks > 1:
        dist.init_process_group("gloo")
        model, optimiser = distributed(model, optimiser, strategy, ranks)
    times = []
    for step in range(warm + steps):
        start = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimiser.step()
        if step >= warm:
            times.append((time.perf_counter() - start) * 1e3)
    record = {"engine": f"torch {torch.__version__}", "model": name, "threads": threads, "ranks": ranks, "strategy": strategy}
    record |= {"med_ms": round(statistics.median(times), 4), "min_ms": round(min(times), 4), "loss": loss.item()}
    if ranks == 1 or dist.get_rank() == 0:
        print(json.dumps(record))
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
