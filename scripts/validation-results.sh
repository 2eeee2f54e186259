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
    printf '# Fitted parameters\n\nPhysical parameters fitted to all published runs that are not marked as doubtful: `experiments/validation/src/published.toml`.\n\n'
    block calibrate '*.json' -o "$root/experiments/validation/src/published.toml" | sed "s|$root/||"
} > "$out/calibrate.md"
{
    printf '# Systems predicted from a fit to all others\n\n'
    rm -f "$out"/plots/*.svg
    block validate '*.json' --leave-one-system-out --plots "$out/plots" | sed "s|$root/||"
} > "$out/leave-one-out.md"
{
    printf '# Runs predicted with one other run of their system\n\n'
    block validate '*.json' --with-one-run
} > "$out/with-one-run.md"
{
    printf '# Generations of GPUs and kinds of NICs left out of the fit\n\n'
    for group in generation fabric; do
        block validate '*.json' --leave-one-$group-out --predictor simulated --predictor physical |
            awk '/^left out/ { next } /^simulated: median/ { skip = 1 } /^scores of/ { skip = 0 } !skip'
        printf '\n'
    done
} > "$out/harder.md"
{
    printf '# Value of each term\n\n'
    block validate '*.json' --leave-one-system-out --ablation
} > "$out/ablation.md"
