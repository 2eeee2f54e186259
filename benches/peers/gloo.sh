#!/usr/bin/env bash
# Collectives over loopback TCP by Allfold and by PyTorch's Gloo, one after the other on a quiet machine.
#
#     bash benches/peers/gloo.sh [VENV]
#
# Installs PyTorch into a virtual environment (some 6 GB) unless it is there.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=${1:-target/peers/torch}
[ -x "$venv/bin/torchrun" ] || {
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --no-cache-dir torch numpy
}
cargo build --release --quiet -p allfold-collectives --example loopback
ours=target/release/examples/loopback
gloo() { "$venv/bin/torchrun" --standalone --nproc-per-node "$1" benches/peers/gloo.py "${@:2}" 2>/dev/null; }

sizes="4096 65536 1048576 16777216 67108864 268435456"
for ranks in 2 4; do
    # shellcheck disable=SC2086
    { "$ours" "$ranks" all_reduce $sizes; gloo "$ranks" all_reduce $sizes; }
    for name in all_gather reduce_scatter; do
        "$ours" "$ranks" "$name" 67108864
        gloo "$ranks" "$name" 67108864
    done
done
for mode in --fabric --tls; do "$ours" "$mode" 2 all_reduce 67108864; done
