#!/usr/bin/env bash
# Runs `allfold`'s own commands of docs/NUMBERS.md, one machine and no peers, and prints what each found. Needs a quiet
# machine and `cargo build --release`.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/target/release:$PATH"

# Prints the command, the lines of its output that match, and its time and peak memory (by GNU time).
number() {
    local keep=$1
    shift
    echo "$ $*"
    /usr/bin/time -f '  %e s real, %U s of one core, %M KiB' "$@" 2>&1 | grep -E "$keep|KiB\$"
}

number 'engine' allfold simulate all_reduce --topology switch --ranks 4096 --algo ring -b 1G -e 1G --engine full
number 'engine' allfold simulate all_reduce --topology nodes8 --ranks 4096 --algo ring -b 1G -e 1G --engine full
number 'engine' allfold simulate all_reduce --topology switch --ranks 131072 --algo halving_doubling -b 1G -e 1G --engine full
number 'engine|float' allfold simulate all_reduce --topology switch --ranks 4096 --algo double_binary_tree -b 4G -e 4G \
    --segment 4M --window 128 --engine full
number 'float' allfold simulate all_reduce --topology switch --ranks 255 --algo double_binary_tree -b 256M -e 256M \
    --segment 1M --window 128 --engine full --sharing split
number 'float' allfold simulate all_reduce --topology switch --ranks 255 --algo double_binary_tree -b 256M -e 256M \
    --segment 1M --window 128 --engine full --sharing max_min
number 'engine' allfold simulate all_reduce --topology nodes8 --ranks 131072 --algo ring -b 1G -e 1G --engine by_symmetry
number 'engine|float' allfold simulate all_reduce --topology nodes8 --ranks 1024 --algo ring --lanes 16 -b 1G -e 1G
number 'engine|float' allfold simulate all_reduce --topology nodes8 --ranks 131072 --algo ring --lanes 16 -b 1G -e 1G
tree=(allfold simulate all_reduce --algo double_binary_tree --lanes 16 -b 1G -e 1G)
number 'engine|float' "${tree[@]}" --ranks 1024 --topology nodes8
number 'engine|float' "${tree[@]}" --ranks 1024 --topology switch
number 'engine|float' "${tree[@]}" --ranks 1024 --topology switch --sharing serial_links
number 'engine|float' "${tree[@]}" --ranks 131072 --topology switch --sharing serial_links
for algorithm in ring tree; do
    number 'float' allfold simulate all_reduce --topology hgx-h100 --ranks 1024 --algo nccl --nccl-algo "$algorithm" -b 1G -e 1G
done
number '^ +1024' allfold scale --config experiments/configs/gpt-175b.toml --ranks 1024 --topology dgx-a100 --device a100 --modeled-only
number 'GPUs|[+-][0-9.]+ %' cargo test --quiet -p allfold-experiments --test explained -- --nocapture
number '^.' allfold faults
number 'proofs' allfold verify
number 'algbw|float|limit|copy|add' allfold bench all_reduce --backend threads --ranks 2 --algo ring -b 1M -e 64M -f 8
number 'algbw|float|limit|copy|add' allfold bench all_reduce --backend threads --ranks 4 -b 64M -e 64M
number 'checks passed' allfold report --out target/report
