"""ResNets and VGGs in PyTorch with torchvision's names, and BERT with those of transformers, for ``test_networks.py``."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """A residual block: two convolutions of 3x3, or, if ``wide``, a bottleneck."""

    def __init__(self, inputs: int, channels: int, stride: int, wide: bool) -> None:
        super().__init__()
        outputs = 4 * channels if wide else channels
        sizes = [(channels, 1, 1), (channels, 3, stride), (outputs, 1, 1)] if wide else [(channels, 3, stride), (outputs, 3, 1)]
        self.depth = len(sizes)
        before = inputs
        for number, (after, kernel, step) in enumerate(sizes, 1):
            setattr(self, f"conv{number}", nn.Conv2d(before, after, kernel, step, kernel // 2, bias=False))
            setattr(self, f"bn{number}", nn.BatchNorm2d(after))
            before = after
        # Damped, so that ten steps of a deep network do not amplify rounding.
        nn.init.constant_(getattr(self, f"bn{self.depth}").weight, 0.1)
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        else:
            self.downsample = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for number in range(1, self.depth + 1):
            y = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(y))
            if number < self.depth:
                y = F.relu(y)
        return F.relu(y + self.downsample(x))


class ResNet(nn.Module):
    def __init__(self, layers: int, imagenet_stem: bool, channels: int, classes: int) -> None:
        super().__init__()
        wide = layers >= 50
        counts = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}[layers]
        stem = {"kernel_size": 7, "stride": 2, "padding": 3} if imagenet_stem else {"kernel_size": 3, "padding": 1}
        self.conv1, self.bn1 = nn.Conv2d(channels, 64, bias=False, **stem), nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if imagenet_stem else nn.Identity()
        inputs = 64
        for stage, (count, width) in enumerate(zip(counts, (64, 128, 256, 512)), 1):
            blocks = []
            for block in range(count):
                blocks.append(Block(inputs, width, 2 if stage > 1 and block == 0 else 1, wide))
                inputs = 4 * width if wide else width
            setattr(self, f"layer{stage}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        return self.fc(x.mean((2, 3)))


class Vgg(nn.Module):
    """A VGG for small pictures: after the features, one linear layer."""

    def __init__(self, layers: int, batch_norm: bool, channels: int, side: int, classes: int) -> None:
        super().__init__()
        counts = {11: (1, 1, 2, 2, 2), 13: (2,) * 5, 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}[layers]
        features: list[nn.Module] = []
        for count, width in zip(counts, (64, 128, 256, 512, 512)):
            for _ in range(count):
                features.append(nn.Conv2d(channels, width, 3, padding=1))
                features += [nn.BatchNorm2d(width)] if batch_norm else []
                features.append(nn.ReLU())
                channels = width
            features.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Linear(512 * (side // 32) ** 2, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(x).flatten(1))


class BertBlock(nn.Module):
    """A block of BERT, with the names of Hugging Face's ``transformers``."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention = nn.Module()
        self.attention.self = nn.Module()
        for name in ("query", "key", "value"):
            setattr(self.attention.self, name, nn.Linear(width, width))
        self.attention.output = nn.Module()
        self.attention.output.dense = nn.Linear(width, width)
        self.attention.output.LayerNorm = nn.LayerNorm(width, eps=1e-12)
        self.intermediate, self.output = nn.Module(), nn.Module()
        self.intermediate.dense, self.output.dense = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.output.LayerNorm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, positions, width = x.shape
        names = ("query", "key", "value")
        parts = [getattr(self.attention.self, name)(x).view(batch, positions, self.heads, -1).transpose(1, 2) for name in names]
        y = F.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(x.shape)
        x = self.attention.output.LayerNorm(x + self.attention.output.dense(y))
        return self.output.LayerNorm(x + self.output.dense(F.gelu(self.intermediate.dense(x))))


class Bert(nn.Module):
    """BERT for the classification of texts, without dropout, with the names of ``BertForSequenceClassification``."""

    def __init__(self, vocabulary: int, positions: int, layers: int, width: int, heads: int, classes: int) -> None:
        super().__init__()
        self.bert = nn.Module()
        self.bert.embeddings = embeddings = nn.Module()
        embeddings.word_embeddings = nn.Embedding(vocabulary, width)
        embeddings.position_embeddings = nn.Embedding(positions, width)
        embeddings.token_type_embeddings = nn.Embedding(2, width)
        embeddings.LayerNorm = nn.LayerNorm(width, eps=1e-12)
        self.bert.encoder = nn.Module()
        self.bert.encoder.layer = nn.ModuleList(BertBlock(width, heads) for _ in range(layers))
        self.bert.pooler = nn.Module()
        self.bert.pooler.dense = nn.Linear(width, width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        parts = self.bert.embeddings
        x = parts.word_embeddings(tokens) + parts.position_embeddings(torch.arange(tokens.shape[1]))
        x = parts.LayerNorm(x + parts.token_type_embeddings(torch.zeros_like(tokens)))
        for block in self.bert.encoder.layer:
            x = block(x)
        return self.classifier(torch.tanh(self.bert.pooler.dense(x[:, 0])))
