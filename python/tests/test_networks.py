"""Allfold's networks compared with PyTorch's: from the same weights, on the same samples, in f64, the same gradients and ten steps."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="SKIP: PyTorch is not installed")

from networks import Bert, ResNet, Vgg  # noqa: E402

STEPS = 10
BATCH = 4
CLASSES = 5
# Small, so that no run is chaotic: rounding would grow.
LR = 0.001
MOMENTUM = 0.9


def trained_by_pytorch(model, x, y):
    """The losses of ten steps, and the state after one step and after ten."""
    model = model.double().train()
    optimiser = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    losses, states = [], []
    for step in range(STEPS):
        part = slice(step * BATCH, (step + 1) * BATCH)
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(x[part])), torch.from_numpy(y[part]))
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        if step in (0, STEPS - 1):
            states.append({name: tensor.numpy().copy() for name, tensor in model.state_dict().items()})
    return losses, states


def trained_by_allfold(folder, keys):
    """As :func:`trained_by_pytorch`."""
    keys = {
        "strategy": "single",
        "data.name": "arrays",
        "data.dir": str(folder),
        "data.shuffle": False,
        "model.weights": str(folder / "first.pt"),
        "precision.dtype": "f64",
        "training.epochs": 1,
        "training.batch": BATCH,
        "optimiser.lr": LR,
        "optimiser.momentum": MOMENTUM,
        "optimiser.weight_decay": 0.0,
        "checkpoint.dir": str(folder / "checkpoints"),
        "checkpoint.every": 1,
        "checkpoint.keep": STEPS,
        **keys,
    }
    (folder / "run.toml").write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items()))
    command = [sys.executable, "-m", "allfold", "train", "--config", "run.toml", "--ranks", "1"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"^  step +\d+  loss ([\d.]+)$", done.stdout, re.MULTILINE)]
    return losses, [state(folder / "checkpoints" / f"step-{step:08}.safetensors") for step in (1, STEPS)]


def state(path):
    """The model's tensors in a checkpoint."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(content[8:start]).items()
    tensors = {}
    for name, entry in entries:
        if name.startswith("model."):
            begin, end = (start + offset for offset in entry["data_offsets"])
            assert entry["dtype"] == "F64", (name, entry)
            tensors[name.removeprefix("model.")] = np.frombuffer(content[begin:end]).reshape(entry["shape"])
    return tensors


def distance(ours, theirs):
    """The largest difference of an element, relative to the largest element of its tensor. Counters are PyTorch's alone."""
    theirs = {name: tensor for name, tensor in theirs.items() if not name.endswith("num_batches_tracked")}
    assert ours.keys() == theirs.keys()
    return max(np.abs(ours[name] - theirs[name]).max() / max(np.abs(theirs[name]).max(), 1e-30) for name in theirs)


def pictures(side):
    return lambda draws, count: draws.standard_normal((count, 3, side, side)).astype(np.float32).astype(np.float64)


def tokens(draws, count):
    return draws.integers(0, 40, (count, 20))


BERT = {"vocabulary": 40, "positions": 32, "layers": 3, "width": 24, "heads": 4}
BERT_KEYS = {("data" if key == "positions" else "model") + f".{key}": value for key, value in BERT.items()}

# A network in PyTorch, what draws its samples, and Allfold's keys.
NETWORKS = {
    "resnet18": (lambda: ResNet(18, False, 3, CLASSES), pictures(16), {}),
    "resnet34": (lambda: ResNet(34, True, 3, CLASSES), pictures(32), {"model.imagenet_stem": True}),
    "resnet50": (lambda: ResNet(50, True, 3, CLASSES), pictures(32), {"model.imagenet_stem": True}),
    "vgg11": (lambda: Vgg(11, True, 3, 32, CLASSES), pictures(32), {}),
    "vgg16": (lambda: Vgg(16, False, 3, 32, CLASSES), pictures(32), {"model.batch_norm": False}),
    "bert": (lambda: Bert(classes=CLASSES, **BERT), tokens, BERT_KEYS),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_ten_steps_are_pytorchs(name, tmp_path):
    make, samples, keys = NETWORKS[name]
    torch.manual_seed(3)
    model = make()
    torch.save(model.state_dict(), tmp_path / "first.pt")
    draws = np.random.default_rng(5)
    x, y = samples(draws, STEPS * BATCH), draws.integers(0, CLASSES, STEPS * BATCH)
    # The greatest label determines the number of classes.
    y[0] = CLASSES - 1
    for part, count in (("train", None), ("test", 2)):
        np.save(tmp_path / f"{part}_x.npy", x[:count])
        np.save(tmp_path / f"{part}_y.npy", y[:count])
    losses, (first, last) = trained_by_allfold(tmp_path, {"model.name": name, **keys})
    their_losses, (their_first, their_last) = trained_by_pytorch(model, x, y)
    distances = distance(first, their_first), distance(last, their_last)
    print(f"{name}: weights differ by {distances[0]:.1e} after 1 step, by {distances[1]:.1e} after {STEPS}")
    assert losses == pytest.approx(their_losses, abs=2e-6)
    assert distances[0] < 1e-11 and distances[1] < 1e-7
