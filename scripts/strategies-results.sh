#!/usr/bin/env bash
# Makes docs/results/strategies/ again: every strategy held against one rank, against its run on virtual time and on GPUs (the shim), and
# compared by time, bytes and memory.
#   scripts/strategies-results.sh [ALLFOLD]
set -euo pipefail
cd "$(dirname "$0")/.."
allfold=${1:-target/release/allfold}
out=docs/results/strategies
mkdir -p $out
plots=$(mktemp -d)
trap 'rm -rf "$plots"' EXIT

tests() { # the tests' printed tables
    printf '```\n$ cargo test %s -- --nocapture\n' "$*"
    cargo test --quiet "$@" -- --nocapture 2>/dev/null | grep -E '\||distance of the weights|^[a-z0-9 ,-]+: .*distance' | sed 's/ *$//'
    printf '```\n\n'
}

block() { # the command as shown, then its output
    printf '```\n$ allfold %s\n' "$*"
    "$allfold" --quiet "$@" "${more[@]}" | sed -E 's/ *$//; /^(page|plots): /d'
    printf '```\n\n'
}

{
    cat <<'TEXT'
# Every strategy, held and compared

The weights after ten steps of SGD with momentum in f64, beside those of one rank on the whole batch: the largest distance of an element,
relative to the largest value of its tensor. The limit is 1e-12. A dash: the strategy does not take that number of ranks. The test
`the_same_bits_on_every_backend` holds that threads, messages between threads, virtual time, TCP and shared memory give the same bits.

TEXT
    tests -p allfold-tests --test strategies ten_steps_of_every_strategy
    printf '## On GPUs\n\nTwo steps in f32 on four GPUs of the shim, which runs the CUDA kernels on the CPU. The limit is 1e-4.\n\n'
    tests -p allfold-tests --test strategies every_strategy_on_gpus
    cat <<'TEXT'
## On the clock

The last step of a run on virtual time, of its slowest rank, and the step as predicted: the test demands that they are equal to the
picosecond, and that the most memory that a rank holds is that of the run to the byte.

TEXT
    tests -p allfold-tests --test strategies the_clock_is_the_virtual_time
    cat <<'TEXT'
## Memory

What eight ranks of a GPT hold between two steps with Adam, by ZeRO's stages; then what ranks report beside what an allocator counts. Beyond
the classes each thread keeps the packed operands of products (0.6 to 1 MB, subtracted below from the rows of two ranks), and a communicator
keeps the buffers of messages for the next ones, in powers of two: one for `data_parallel`, one or two for `pipeline`.

TEXT
    tests -p allfold-tests --test strategies sharded_classes_fall
    tests -p allfold-trainer --test memory
    cat <<'TEXT'
## Comparisons

Measured on threads that share two cores of a Xeon, on which other programs ran, so that these times are rough; and predicted, each rank
computing on a GPU of its own.

TEXT
    more=(--plots "$plots")
    block compare --config experiments/configs/digits-mlp.toml --ranks 4
    cp "$plots"/compare-*-pipeline.svg $out/pipeline.svg
    printf '![a step of the pipeline on every rank](pipeline.svg)\n\n'
    more=()
    block compare --config experiments/configs/text-gpt.toml --set data.name=synthetic --set data.synthetic_classes=96 \
        --set data.synthetic_samples=2000 --ranks 8 --steps 3 --topology dgx-a100 --predicted-only \
        --strategies single,ddp,data_parallel,parameter_server,zero1,zero2,zero3,pipeline,context
    printf 'GPT-2 of 124 million parameters in bf16 on two nodes of A100s, without arithmetic, in seconds:\n\n'
    block compare --config experiments/configs/gpu/gpt2.toml --ranks 16 --topology dgx-a100 --device a100 --modeled-only \
        --strategies single,ddp,data_parallel,parameter_server,zero1,zero2,zero3,pipeline
} > $out/README.md
