#!/usr/bin/env bash
# All-reduce (f32, sum) of Open MPI and of Allfold between ranks of this host, side by side in one run: for each number
# of ranks, Open MPI's processes, then Allfold's threads, then its processes; all of it RUNS times (default: once). Writes
# one JSON line per measurement to the file named first (default: shared-memory.jsonl), and prints the table that
# summary.py makes of it.
#   [RUNS=3] bash benches/peers/openmpi/run.sh [OUT.jsonl] [FIRST LAST FACTOR]      needs a quiet machine
set -euo pipefail
cd "$(dirname "$0")/../../.."
out=${1:-shared-memory.jsonl}
sizes=("${2:-4}" "${3:-268435456}" "${4:-8}")
bash scripts/install-mpi.sh
profile=${PROFILE:-release}
if [ "$profile" = release ]; then flags=(--release); else flags=(); fi
cargo build --quiet "${flags[@]}" -p allfold-collectives --example shared_memory
mine=target/$profile/examples/shared_memory
peer=$(mktemp)
trap 'rm -f "$peer"' EXIT
mpicc -O2 -o "$peer" benches/peers/openmpi/all_reduce.c
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
: >"$out"
for _ in $(seq "${RUNS:-1}"); do
    for ranks in ${RANKS:-2 4}; do
        mpirun --oversubscribe -n "$ranks" "$peer" "${sizes[@]}" >>"$out"
        "$mine" threads "$ranks" "${sizes[@]}" >>"$out"
        "$mine" processes "$ranks" "${sizes[@]}" >>"$out"
    done
done
python3 benches/peers/openmpi/summary.py "$out"
