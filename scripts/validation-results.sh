#!/usr/bin/env bash
# Makes docs/results/validation/ again, and the parameters that ship: fits, scores, what each term is worth, plots.
#   scripts/validation-results.sh RUNS_DIRECTORY [ALLFOLD]
# RUNS_DIRECTORY holds the published runs (JSON; `validate` reads them), ALLFOLD is the command to use. Build again
# afterwards: the parameters are part of the program. A test of allfold-validation compares them with the fit, where the
# runs lie in $ALLFOLD_DATA/nccl-tests.
set -euo pipefail
cd "$(dirname "$0")/.."
runs=$(realpath "${1:?name the directory of the published runs}")
allfold=$(realpath "${2:-target/release/allfold}")
root=$PWD
out=$root/docs/results/validation

block() { # command line as shown, run where the runs are; its output
    printf '```\n$ allfold %s\n' "$*"
    # shellcheck disable=SC2046 # file patterns among the words are to become words
    (cd "$runs" && "$allfold" $(eval echo "$*")) | sed "s/ *$//; s|$root/||; /^plot: /d"
    printf '```\n'
}

{
    # shellcheck disable=SC2016 # backticks of Markdown
    printf '# The fit that ships\n\nPhysical parameters fitted to all published runs that nobody doubts: `experiments/validation/src/published.toml`.\n\n'
    block calibrate '*.json' -o "$root/experiments/validation/src/published.toml" | sed "s|$root/||"
} > "$out/calibrate.md"
{
    printf '# Every system from a fit to all the others\n\n'
    rm -f "$out"/plots/*.svg
    block validate '*.json' --leave-one-system-out --plots "$out/plots" | sed "s|$root/||"
} > "$out/leave-one-out.md"
{
    printf '# Every run from a fit to all other systems and one other run of its own\n\n'
    block validate '*.json' --with-one-run
} > "$out/with-one-run.md"
{
    printf '# Harder: every generation of GPUs, and every kind of NICs, from a fit to all the others\n\n'
    for group in generation fabric; do
        block validate '*.json' --leave-one-$group-out --predictor simulated --predictor physical |
            awk '/^left out/ { next } /^simulated: median/ { skip = 1 } /^scores of/ { skip = 0 } !skip'
        printf '\n'
    done
} > "$out/harder.md"
{
    printf '# What each term is worth\n\n'
    block validate '*.json' --leave-one-system-out --ablation
} > "$out/ablation.md"
