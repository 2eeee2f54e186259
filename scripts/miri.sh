#!/usr/bin/env bash
# Runs what Miri can run of the shared-memory code: segments, slots, gates and fills on ordinary memory, with the
# instructions every processor has. Needs a nightly toolchain: rustup toolchain install nightly --component miri.
set -euo pipefail
cd "$(dirname "$0")/.."
export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-many-seeds=0..4"
exec cargo +nightly miri test -p allfold-kernels --lib fused::tests "$@"
