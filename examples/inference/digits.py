"""Loads the digits' CNN that `allfold train` wrote, and counts PyTorch's right answers on the test set.

    allfold train --config experiments/configs/digits-cnn.toml --ranks 2 --set checkpoint.every=1000
    pip install torch safetensors numpy
    python examples/inference/digits.py checkpoints/step-00000092.safetensors

It prints what `train` prints in its line of accuracy: 347 of 360 test samples.
"""

import gzip
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

DIGITS = Path(__file__).parents[2] / "trainer/data/digits.csv.gz"
TRAIN = 1437


def network() -> nn.Sequential:
    """The network of experiments/configs/digits-cnn.toml. Its modules have the names of Allfold's layers."""
    model, channels = nn.Sequential(), [1, 32, 64]
    for at, (inputs, outputs) in enumerate(zip(channels, channels[1:]), start=1):
        model.add_module(f"conv{at}", nn.Conv2d(inputs, outputs, 3, padding=1, bias=False))
        model.add_module(f"bn{at}", nn.BatchNorm2d(outputs))
        model.add_module(f"relu{at}", nn.ReLU())
    model.add_module("pool", nn.MaxPool2d(2))
    model.add_module("flatten", nn.Flatten())
    model.add_module("fc", nn.Linear(64 * 4 * 4, 10))
    return model


def weights(path: str) -> dict[str, torch.Tensor]:
    """The tensors of the model in a checkpoint, under PyTorch's names: without the optimiser's state and what the run recorded."""
    prefix = "model."
    return {name.removeprefix(prefix): tensor for name, tensor in load_file(path).items() if name.startswith(prefix)}


def main() -> None:
    model = network()
    model.load_state_dict(weights(sys.argv[1]))
    model.eval()
    with gzip.open(DIGITS, "rt") as file:
        rows = torch.tensor([[int(cell) for cell in line.split(",")] for line in file][TRAIN:])
    pictures, labels = rows[:, :64].float().view(-1, 1, 8, 8) / 16, rows[:, 64]
    with torch.no_grad():
        right = (model(pictures).argmax(1) == labels).sum().item()
    print(f"{right} of {len(labels)} test samples")


if __name__ == "__main__":
    main()
