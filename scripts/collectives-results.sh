#!/usr/bin/env bash
# Makes docs/results/scaling/collectives.md and its picture again: curves of all-reduces from 1 to 131,072 ranks.
#   scripts/collectives-results.sh [ALLFOLD]
set -euo pipefail
cd "$(dirname "$0")/.."
allfold=${1:-target/release/allfold}
out=docs/results/scaling

block() { # the command as shown, then its output, then its time and memory (GNU time)
    printf '```\n$ allfold %s\n' "$*"
    /usr/bin/time -f '%U s of one core, %M KiB' "$allfold" "$@" 2>&1 | sed 's/ *$//'
    printf '```\n\n'
}

{
    cat <<'TEXT'
# All-reduce on 1 to 131,072 ranks

All times are simulated; only the simulator's own run time (*real*) was measured. The engine column says what was left out without changing
any time: `16 lanes merged` (16 lanes are equal, and one of them is simulated), `8192 ranks per class` (one rank of each symmetry class is
simulated), `skipped` (messages of a pipeline that repeats the same state). With `serial_links` a link carries one message at a time, in order
of rounds; with `split` messages share it. The two rules give different times, which are compared below.

TEXT
    block scale collective all_reduce --algo ring,double_binary_tree,halving_doubling,hierarchical --size 1G --lanes 16 \
        --topology nodes8 --ranks 1..131072 --plot $out/collectives.svg
    printf '![time over ranks](collectives.svg)\n\n## Serial links compared with shared links\n\n'
    for topology in switch nodes8; do
        for ranks in 64 1024; do
            for rule in sharing=serial_links engine=full; do
                block simulate all_reduce --topology $topology --ranks $ranks --algo double_binary_tree --lanes 16 \
                    -b 1G -e 1G "--${rule%=*}" "${rule#*=}"
            done
        done
    done
} > $out/collectives.md
