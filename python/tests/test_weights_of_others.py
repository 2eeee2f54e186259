"""Checkpoints as other programs write them: `model.weights` reads what `torch.load(weights_only=True)` reads, with the same values, and
refuses what it refuses. `pytest -s python/tests/test_weights_of_others.py` prints the table of them."""

import argparse
import collections
import datetime
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="SKIP: PyTorch is not installed")

from test_networks import state  # noqa: E402

SHAPES = {"fc1.weight": (3, 4), "fc1.bias": (3,), "fc2.weight": (2, 3), "fc2.bias": (2,)}
RUN = """
[model]
name = "mlp"
hidden = [3]
[data]
name = "synthetic"
synthetic_shape = [1, 2, 2]
synthetic_classes = 2
synthetic_samples = 8
[training]
batch = 8
max_steps = 1
[optimiser]
lr = 0.0
[precision]
dtype = "f64"
[checkpoint]
every = 1
"""
PREFIXES = """module. _orig_mod. module._orig_mod. _orig_mod.module. module.module. model. net. backbone. _forward_module.
_fsdp_wrapped_module. model.module. a.b.c.""".split()
HOLDERS = "net ema params state_dict model model_state_dict module network weights generator".split()
BESIDE = {
    "device": torch.device("cpu"),
    "size": torch.Size([3, 4]),
    "dtype": torch.float16,
    "layout": torch.strided,
    "set": {1, 2},
    "complex": 1 + 2j,
    "counter": collections.Counter("aab"),
    "ordered": collections.OrderedDict(a=1),
    "bytes": b"ab\xff",
    "bytearray": bytearray(b"ab"),
    "large": 1 << 70,
    "none": None,
    "path": "\udcff",
    "list": [torch.zeros(2), {"a": [1.5]}],
    "sparse": torch.eye(3).to_sparse(),
    "csr": torch.eye(3).to_sparse_csr(),
    "complex128": torch.zeros(2, dtype=torch.complex128),
    "float8": torch.zeros(2).to(torch.float8_e5m2fnuz),
    "meta": torch.zeros(2, device="meta"),
    "parameter": torch.nn.Parameter(torch.zeros(2)),
    "storage": torch.zeros(2).untyped_storage(),
    "frozenset": frozenset([1]),
    "defaultdict": collections.defaultdict(list),
    "namespace": argparse.Namespace(lr=0.1),
    "datetime": datetime.datetime(2026, 1, 1),
    "posix": pathlib.PurePosixPath("/x"),
    "module": torch.nn.Linear(2, 2),
    "range": range(3),
}


def checkpoints(weights):
    """The name of each checkpoint, what is saved, and how."""
    for prefix in PREFIXES:
        yield f"names {prefix}", {prefix + name: tensor for name, tensor in weights.items()}, {}
    for holder in HOLDERS:
        yield f"entry {holder}", {"epoch": 3, holder: weights, "accuracy": 91.5}, {}
    for kind, value in BESIDE.items():
        yield f"beside {kind}", {"state_dict": weights, "more": value}, {}
    old = {"_use_new_zipfile_serialization": False}
    yield "before 1.6", weights, old
    yield "before 1.6, in a checkpoint", {"epoch": 3, "state_dict": weights, "best": torch.tensor(0.5)}, old
    views = torch.cat([tensor.flatten() for tensor in weights.values()]).split([tensor.numel() for tensor in weights.values()])
    yield "before 1.6, views", {name: view.view(SHAPES[name]) for name, view in zip(weights, views, strict=True)}, old
    yield "transposed", {name: tensor.t().contiguous().t() if tensor.dim() > 1 else tensor for name, tensor in weights.items()}, {}
    yield "protocol 3", weights, {"pickle_protocol": 3}
    yield "an entry that is no tensor", weights | {"_extra_state": None, "version": 3}, {}
    yield "a tuple", (weights, 3), {}
    yield "a wrapper inside", {name.replace("fc1.", "fc1.module."): tensor for name, tensor in weights.items()}, {}
    average = torch.optim.swa_utils.AveragedModel(torch.nn.Linear(2, 2)).state_dict()["n_averaged"]
    yield "an averaged model", {"n_averaged": average} | {f"module.{name}": tensor for name, tensor in weights.items()}, {}
    yield "lightning", {"state_dict": {f"model.{name}": tensor for name, tensor in weights.items()}, "loops": {}, "callbacks": {}}, {}


def test_checkpoints_of_others_are_read_as_pytorch_reads_them(tmp_path):
    torch.manual_seed(3)
    weights = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    (tmp_path / "run.toml").write_text(RUN)
    rows = []
    for number, (name, content, how) in enumerate(checkpoints(weights)):
        path, folder = tmp_path / f"{number}.pt", tmp_path / str(number)
        torch.save(content, path, **how)
        try:
            torch.load(path, weights_only=True)
            theirs = "read"
        except Exception:
            theirs = "refused"
        command = [sys.executable, "-m", "allfold", "train", "--config", "run.toml", "--ranks", "1"]
        command += ["--set", f"model.weights={path}", "--set", f"checkpoint.dir={folder}"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        ours = {0: "read", 2: "refused"}.get(done.returncode, done.stderr)
        if ours == "read":
            tensors = state(folder / "step-00000001.safetensors")
            assert tensors.keys() == weights.keys()
            assert all((tensors[key] == weights[key].double().numpy()).all() for key in weights), name
        rows.append((name, theirs, ours))
    print("".join(f"\n| {name} | {theirs} | {ours} |" for name, theirs, ours in rows))
    assert len(rows) == 60
    assert [row for row in rows if row[1] != row[2]] == []
