#!/usr/bin/env python3
"""The models of experiments/configs/gpu, trained by PyTorch on one GPU: samples (of GPT: tokens) per second.

    torch_gpu.py MODEL eager|compile [STEPS]        MODEL: mlp, resnet18, resnet50, gpt2

Prints one line of JSON. Shapes, batch sizes, precision, optimisers and numbers of steps are those of the configurations; the
median of all steps after the first third counts, as on the other side. Channels last and fused optimisers: PyTorch as its
own guides advise. Needs torch; no other package.
"""
import json
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


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in MODELS or sys.argv[2] not in ("eager", "compile"):
        sys.exit(__doc__)
    build, make, narrow, steps, kind, clip, samples = MODELS[sys.argv[1]]
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else steps
    if not torch.cuda.is_available():
        sys.exit("torch_gpu: torch sees no GPU")
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    model = build().cuda()
    convolutional = sys.argv[1].startswith("resnet")
    if convolutional:
        model = model.to(memory_format=torch.channels_last)
    if kind == "sgd":
        optimiser = torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=5e-4, fused=True)
    else:
        optimiser = torch.optim.AdamW(model.parameters(), 6e-4, (0.9, 0.95), weight_decay=0.1, fused=True)
    run = torch.compile(model) if sys.argv[2] == "compile" else model
    scaler = torch.amp.GradScaler("cuda", enabled=narrow is torch.float16)
    batches = [tuple(part.pin_memory() for part in make()) for _ in range(2)]
    times, loss = [], None
    for step in range(steps):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        x, labels = (part.cuda(non_blocking=True) for part in batches[step % 2])
        if convolutional:
            x = x.to(memory_format=torch.channels_last)
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", narrow or torch.float16, enabled=narrow is not None):
            loss = F.cross_entropy(run(x), labels)
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimiser)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimiser)
        scaler.update()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    seconds = statistics.median(times[steps // 3 :])
    print(json.dumps({
        "schema": 1, "kind": "peer", "measured": True, "peer": "pytorch", "version": torch.__version__, "mode": sys.argv[2],
        "model": sys.argv[1], "device": torch.cuda.get_device_name(), "steps": steps, "step_us": seconds * 1e6,
        "samples_per_s": samples / seconds, "loss": loss.item(), "peak_bytes": torch.cuda.max_memory_allocated(),
    }))


if __name__ == "__main__":
    main()
