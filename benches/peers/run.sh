#!/usr/bin/env bash
# Times a training step of five models in Allfold and in PyTorch, one after the other, on as many threads, and prints
# one line of JSON for each; then two ranks of one thread, as threads (compared with one rank, in turn), as processes, and by PyTorch's
# DDP over gloo; then zero3 of the GPT and PyTorch's fully_shard. PyTorch is installed into a Python environment of its own (5.5 GB) the first time:
#
#   benches/peers/run.sh [ENVIRONMENT]            [default: target/peers]
set -euo pipefail
cd "$(dirname "$0")/../.."
python="${1:-target/peers}/bin/python"
if [ ! -x "$python" ]; then
    python3 -m venv "${1:-target/peers}"
    "$python" -m pip install --quiet torch numpy
fi
cargo bench --quiet -p allfold-trainer --bench peer --no-run
for model in mlp gpt resnet18 resnet50 resnet34-fc; do
    for threads in 1 2; do
        cargo bench --quiet -p allfold-trainer --bench peer -- "$model" "$threads"
        OMP_NUM_THREADS=$threads "$python" benches/peers/torch_step.py "$model" "$threads"
    done
done
cargo build --quiet --release --bin allfold
for model in mlp gpt resnet18; do
    cargo bench --quiet -p allfold-trainer --bench peer -- "$model" 1 2
    target/release/allfold launch -n 2 -- cargo bench --quiet -p allfold-trainer --bench peer -- "$model" 1
    OMP_NUM_THREADS=1 "$python" -m torch.distributed.run --nproc-per-node 2 benches/peers/torch_step.py "$model" 1
done
for _ in 1 2 3; do
    target/release/allfold launch -n 2 -- cargo bench --quiet -p allfold-trainer --bench peer -- gpt 1 2 zero3
    OMP_NUM_THREADS=1 "$python" -m torch.distributed.run --nproc-per-node 2 benches/peers/torch_step.py gpt 1 fsdp
done
