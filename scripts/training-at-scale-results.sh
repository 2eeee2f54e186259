#!/usr/bin/env bash
# Makes docs/results/training-at-scale/ again: how far predicted steps of large models are from published rows.
#   scripts/training-at-scale-results.sh ROWS_DIRECTORY [ALLFOLD]
# ROWS_DIRECTORY holds the published rows (JSON; `validate` reads them), ALLFOLD is the command to use.
set -euo pipefail
cd "$(dirname "$0")/.."
rows=$(realpath "${1:?name the directory of the published rows}")
allfold=$(realpath "${2:-target/release/allfold}")
out=$PWD/docs/results/training-at-scale
# Files of collectives lie beside the rows of training.
# shellcheck disable=SC2012 # names without blanks
files=$(cd "$rows" && ls ./*.json | sed 's|^\./||' | grep -v '^collective_\|^expert_parallel_')

page() { # file, title, flags of `validate`
    local title=$2
    shift 2
    printf '# %s\n\n```\n$ allfold validate ROWS %s\n' "$title" "$*"
    # shellcheck disable=SC2086 # a list of files
    (cd "$rows" && "$allfold" validate $files "$@") | sed 's/ *$//'
    printf '```\n'
} > "$out/${1:?}"

page spec-only.md 'Steps predicted by the parameters that ship' --spec-only
page leave-one-out.md 'Systems predicted from a fit to all others' --leave-one-system-out
page one-known-row.md 'The same with the first row of each system known' --leave-one-system-out --with-one-row
page models-left-out.md 'Models predicted from a fit to all others' --leave-one-model-out
