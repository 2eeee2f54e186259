#!/usr/bin/env bash
# Fuzzes every parser of outside text, and of received messages, guided by coverage, for some seconds each:
#
#   scripts/fuzz.sh [SECONDS [TARGET..]]        [default: 3, all of fuzz/fuzz_targets]
#
# It needs no nightly compiler: libFuzzer's instrumentation is LLVM's own pass. `cargo +nightly fuzz run TARGET` adds
# AddressSanitizer. Finds are kept in target/fuzz/finds, and the first one ends the script.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds="${1:-3}"
shift $(($# > 0 ? 1 : 0))
host=$(rustc -vV | sed -n 's/^host: //p')
coverage="-Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
coverage="$coverage -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
# With a target named, the flags are for the fuzzed code alone, not for build scripts.
RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module $coverage -Cdebug-assertions" \
    cargo build --quiet --manifest-path fuzz/Cargo.toml --profile fuzz --target "$host" --target-dir target/fuzz
mkdir -p target/fuzz/finds
for source in fuzz/fuzz_targets/*.rs; do
    name=$(basename "$source" .rs)
    [ $# = 0 ] || [[ " $* " = *" $name "* ]] || continue
    # New inputs go to the first folder; the seeds are only read.
    mkdir -p "target/fuzz/corpus/$name"
    seeds="fuzz/corpus/$name"
    "target/fuzz/$host/fuzz/$name" "target/fuzz/corpus/$name" "$seeds" -artifact_prefix=target/fuzz/finds/ \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -close_fd_mask=1 -print_final_stats=1 \
        2> "target/fuzz/$name.log" || { tail -n 30 "target/fuzz/$name.log"; exit 1; }
    sed -n "s|^stat::number_of_executed_units: *|$name: inputs |p" "target/fuzz/$name.log"
done
