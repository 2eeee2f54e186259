#!/usr/bin/env bash
# Run this before each commit: formatting, linters, the structure of the code, and the tests that start no process and do not
# wait. Under three minutes once everything is built. The gate, `bash .ci/run`, runs all of it and the rest.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo fmt --all --check
if command -v shellcheck >/dev/null; then
    shellcheck scripts/*.sh examples/slurm/*.sbatch .ci/run
fi
cargo clippy --workspace --all-targets --quiet -- -D warnings
cargo test --quiet -p allfold-base -p allfold-schedules -p allfold-sim -p allfold-timing -p allfold-nccl-model
cargo test --quiet -p allfold-kernels -p allfold-net -p allfold-collectives -p allfold-trainer -p allfold-experiments --lib
cargo test --quiet -p allfold-structure
echo "check: passed"
