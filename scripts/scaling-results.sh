#!/usr/bin/env bash
# Makes docs/results/scaling/ again: curves of large networks, published tables predicted, four of them explained.
#   scripts/scaling-results.sh TABLES_DIRECTORY [ALLFOLD]
# TABLES_DIRECTORY holds the published tables (JSON; `scale validate` reads them), ALLFOLD is the command to use.
set -euo pipefail
cd "$(dirname "$0")/.."
tables=$(realpath "${1:?name the directory of the published tables}")
allfold=${2:-target/release/allfold}
out=docs/results/scaling

block() { # command line as shown, then its output
    printf '```\n$ allfold %s\n' "$*"
    # shellcheck disable=SC2294
    # shellcheck disable=SC2046 # file patterns among the words are to become words
    (cd "$tables" && "$allfold_path" $(eval echo "$*")) | sed 's/ *$//'
    printf '```\n\n'
}
allfold_path=$(realpath "$allfold")

{
    printf '# Large networks from 1 to 131,072 GPUs\n\nModelled: tables of layers on a roofline, buckets and overlap of DDP, exchanges by the fitted model of NCCL or, below switches, simulated on the machine. Nothing here was measured.\n\n'
    block scale workload resnet50 --topology dgx-a100 --ranks 1..131072 --batch 256 --amp
    block scale workload resnet50 --topology dgx-a100 --ranks 1..131072 --batch 32768 --amp --strong
    block scale workload gpt2-xl --topology hgx-h100,fat-tree=2:1 --ranks 1..131072 --batch 4 --amp
    block scale workload bert-large --topology p4d --ranks 1..131072 --batch 65536 --amp --strong
    printf '![weak scaling](resnet50-weak.svg)\n\n![strong scaling](resnet50-strong.svg)\n'
} > $out/curves.md
"$allfold" scale workload resnet50 --topology dgx-a100 --ranks 1..131072 --batch 256 --amp --plot $out/resnet50-weak.svg > /dev/null
"$allfold" scale workload resnet50 --topology dgx-a100 --ranks 1..131072 --batch 32768 --amp --strong --plot $out/resnet50-strong.svg > /dev/null

{
    printf '# Published throughput predicted from the row of one GPU\n\nNothing is fitted to these tables. Errors of throughput: |predicted / published - 1|.\n\n'
    printf '![errors in rising order](published.svg)\n\n'
    block scale validate '*.json'
    printf '## Every row\n\n'
    block scale validate '*.json' --rows
} > $out/published.md
"$allfold" scale validate "$tables"/*.json --plot $out/published.svg > /dev/null

{
    printf '# Four small published tables, explained\n\nThe row of one GPU is fitted; for ResNet-34 also that of two. The text says what is assumed and what stays open.\n\n'
    printf '```\n$ cargo test -p allfold-experiments --test explained -- --nocapture\n'
    cargo test --quiet -p allfold-experiments --test explained -- --nocapture | sed -n '/^ResNet-34/,/^  open: why four/p'
    printf '```\n'
} > $out/explained.md
