#!/usr/bin/env bash
# Checks that the command without GPUs and TLS compiles for macOS: simulation, proofs, reports, and training on threads. Running
# the command there is not tested. rustup fetches the target's standard library; if rustup cannot, the script prints SKIP.
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-apple-darwin
if ! timeout 120 rustup target add "$target" >/dev/null 2>&1; then
    mkdir -p target/tests
    echo "SKIP macOS: rustup cannot fetch the standard library for $target" | tee target/tests/macos.log
    exit 0
fi
RUSTFLAGS="-D warnings" cargo check --quiet --target "$target" -p allfold-experiments --no-default-features
echo "macos.sh: the command compiles for $target"
