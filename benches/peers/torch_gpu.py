#!/usr/bin/env python3
"""The models of experiments/configs/gpu, trained by PyTorch on one GPU: samples (of GPT: tokens) per second.

    torch_gpu.py MODEL eager|compile [STEPS]        MODEL: mlp, resnet18, resnet50, gpt2
    torch_gpu.py adamw|copy eager                   the fused AdamW over 512 MiB of parameters; a copy of as much: GB/s
    --device cpu --small                            the same code with small sizes on the processor: to check that it runs

Prints one line of JSON. Shapes, batch sizes, precision, optimisers and numbers of steps are those of the configurations. Both
sides warm up alike. Training: the median step after the first third of the steps, as in `steady_samples_per_s` of the records
of `allfold train`. Kernels: one call is not counted, then the best of three stretches of 20 calls between two events, as in
`collectives/gpu/benches/gpu.rs`. Channels last and fused optimisers: PyTorch as its own guides advise. Needs torch; no other package.
"""
import argparse
import json
import math
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


def mlp():
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


class Block(nn.Module):
    """A residual block: basic (two 3x3) or, where wide, a bottleneck (1x1, 3x3, 1x1)."""

    def __init__(self, inputs, channels, stride, wide):
        super().__init__()
        outputs = 4 * channels if wide else channels
        shapes = [(channels, 1, 1), (channels, 3, stride), (outputs, 1, 1)] if wide else [(channels, 3, stride), (channels, 3, 1)]
        deep = []
        at = inputs
        for width, side, step in shapes:
            deep += [nn.Conv2d(at, width, side, step, side // 2, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            at = width
        self.deep = nn.Sequential(*deep[:-1])
        same = stride == 1 and inputs == outputs
        self.short = nn.Identity() if same else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return F.relu(self.deep(x) + self.short(x))


def resnet(blocks, wide, large, classes):
    side, stride = (7, 2) if large else (3, 1)
    parts = [nn.Conv2d(3, 64, side, stride, side // 2, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    if large:
        parts.append(nn.MaxPool2d(3, 2, 1))
    at = 64
    for stage, (count, channels) in enumerate(zip(blocks, (64, 128, 256, 512))):
        for block in range(count):
            parts.append(Block(at, channels, 2 if stage > 0 and block == 0 else 1, wide))
            at = 4 * channels if wide else channels
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(at, classes))


class Layer(nn.Module):
    """One block of the transformer: attention, then two linear layers, each behind a layer norm."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, width = x.shape
        q, k, v = (part.view(n, t, self.heads, -1).transpose(1, 2) for part in self.qkv(self.ln1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, width)
        x = x + self.proj(y)
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, words=50257, positions=1024, layers=12, width=768, heads=12):
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(positions, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)).flatten(0, 1)


def pictures(batch, shape, classes):
    return torch.randn(batch, *shape), torch.randint(classes, (batch,))


# model, a batch, precision, steps, optimiser, the most of the gradients' norm, samples that a batch counts as
MODELS = {
    "mlp": (mlp, lambda: pictures(256, (784,), 10), None, 300, "sgd", None, 256),
    "resnet18": (lambda: resnet((2, 2, 2, 2), False, False, 10), lambda: pictures(128, (3, 32, 32), 10), torch.float16, 100, "sgd", None, 128),
    "resnet50": (lambda: resnet((3, 4, 6, 3), True, True, 1000), lambda: pictures(256, (3, 224, 224), 1000), torch.float16, 30, "sgd", None, 256),
    "gpt2": (Gpt, lambda: (torch.randint(50257, (8, 1024)), torch.randint(50257, (8 * 1024,))), torch.bfloat16, 30, "adamw", 1.0, 8 * 1024),
}
SMALL = {
    "mlp": (mlp, lambda: pictures(16, (784,), 10), None, 6, "sgd", None, 16),
    "resnet18": (lambda: resnet((2, 2, 2, 2), False, False, 10), lambda: pictures(2, (3, 32, 32), 10), torch.bfloat16, 3, "sgd", None, 2),
    "resnet50": (lambda: resnet((3, 4, 6, 3), True, True, 1000), lambda: pictures(2, (3, 64, 64), 1000), torch.bfloat16, 3, "sgd", None, 2),
    "gpt2": (lambda: Gpt(512, 64, 2, 64, 2), lambda: (torch.randint(512, (2, 64)), torch.randint(512, (2 * 64,))), torch.bfloat16, 3, "adamw", 1.0, 2 * 64),
}


# Learning rates and weight decays of the configurations with SGD.
RATES = {"mlp": (0.05, 0.0), "resnet18": (0.01, 5e-4), "resnet50": (0.01, 5e-5)}


def finish(device):
    if device == "cuda":
        torch.cuda.synchronize()


def timed(device, steps, body):
    """The median time of a body in seconds, after the first third."""
    times = []
    for _ in range(steps):
        finish(device)
        begun = time.perf_counter()
        body()
        finish(device)
        times.append(time.perf_counter() - begun)
    return statistics.median(times[steps // 3 :])


def stretched(device, repeats, body):
    """Seconds of one call: the best of three stretches of calls, after one that is not counted."""
    body()
    finish(device)
    best = float("inf")
    for _ in range(3):
        if device == "cuda":
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record()
        start = time.perf_counter()
        for _ in range(repeats):
            body()
        if device == "cuda":
            ended.record()
            ended.synchronize()
            best = min(best, begun.elapsed_time(ended) / 1e3)
        else:
            best = min(best, time.perf_counter() - start)
    return best / repeats


def moved(args):
    """Bytes that a kernel moves, and one call of it: operands counted once, as in Allfold's benchmark."""
    count = (1 << 20) if args.small else (128 << 20)
    if args.model == "copy":
        a, b = torch.ones(count, device=args.device), torch.empty(count, device=args.device)
        return 8 * count, lambda: b.copy_(a)
    parts = [torch.ones(count // 16, device=args.device, requires_grad=True) for _ in range(16)]
    for part in parts:
        part.grad = torch.ones_like(part)
    # Read: parameter, gradient, both moments. Written: all but the gradient.
    return 28 * count, torch.optim.AdamW(parts, 1e-3, fused=True).step


def train(args):
    build, make, narrow, steps, kind, clip, samples = (SMALL if args.small else MODELS)[args.model]
    steps, device = args.steps or steps, args.device
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    model = build().to(device)
    convolutional = args.model.startswith("resnet")
    if convolutional:
        model = model.to(memory_format=torch.channels_last)
    if kind == "sgd":
        rate, decay = RATES[args.model]
        optimiser = torch.optim.SGD(model.parameters(), rate, 0.9, weight_decay=decay, fused=True)
    else:
        optimiser = torch.optim.AdamW(model.parameters(), 6e-4, (0.9, 0.95), weight_decay=0.1, fused=True)
    run = torch.compile(model) if args.mode == "compile" else model
    scaler = torch.amp.GradScaler(device, enabled=narrow is torch.float16)
    batches = [make() for _ in range(2)]
    if device == "cuda":
        batches = [tuple(part.pin_memory() for part in batch) for batch in batches]
    last = {"loss": None, "step": 0}

    def step():
        x, labels = (part.to(device, non_blocking=True) for part in batches[last["step"] % 2])
        if convolutional:
            x = x.to(memory_format=torch.channels_last)
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(device, narrow or torch.bfloat16, enabled=narrow is not None):
            loss = F.cross_entropy(run(x), labels)
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimiser)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimiser)
        scaler.update()
        last["loss"], last["step"] = loss, last["step"] + 1

    seconds = timed(device, steps, step)
    loss = last["loss"].item()
    return {"steps": steps, "step_us": seconds * 1e6, "samples_per_s": samples / seconds, "loss": loss if math.isfinite(loss) else None}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=[*MODELS, "adamw", "copy"])
    parser.add_argument("mode", choices=["eager", "compile"])
    parser.add_argument("steps", nargs="?", type=int)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    cuda = args.device == "cuda"
    if cuda and not torch.cuda.is_available():
        sys.exit("torch_gpu: torch sees no GPU")
    if args.model in MODELS:
        found = train(args)
    else:
        bytes_moved, body = moved(args)
        found = {"bytes": bytes_moved, "gbps": bytes_moved / stretched(args.device, args.steps or 20, body) / 1e9}
    print(json.dumps({
        "schema": 2, "kind": "peer", "measured": True, "peer": "pytorch", "version": torch.__version__, "mode": args.mode,
        "model": args.model, "device": torch.cuda.get_device_name() if cuda else "cpu", "small": args.small, **found,
        **({"peak_bytes": torch.cuda.max_memory_allocated()} if cuda else {}),
    }))


if __name__ == "__main__":
    main()
