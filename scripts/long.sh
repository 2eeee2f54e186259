#!/usr/bin/env bash
# Searches that take too long for the gate: more random cases of every property, more seeds of every fault, links shaped in full.
# Prints one row per search, for the message of the commit that it belongs to: `bash scripts/long.sh [ROW ..]`.
# FACTOR=N multiplies the cases (1: about half an hour on two cores).
set -euo pipefail
cd "$(dirname "$0")/.."
factor=${FACTOR:-1}
log=target/long
mkdir -p "$log"

wanted=("$@")
printf '| %-18s | %10s | %8s | %6s |\n' search cases seconds result
printf '|---|---|---|---|\n'

failed=0
# row NAME CASES VARIABLE CARGO-ARGUMENTS..: one search, of so many cases.
row() {
    local name=$1 cases=$2 variable=$3
    if [ ${#wanted[@]} -gt 0 ] && [[ ! " ${wanted[*]} " == *" $name "* ]]; then
        return
    fi
    local begun=$SECONDS result=passed
    if ! env "$variable=$cases" cargo test --release "${@:4}" >"$log/$name.log" 2>&1; then
        result=FAILED
        failed=1
    elif ! grep -qE '^test result: ok\. [1-9]' "$log/$name.log"; then
        result='no test'
        failed=1
    fi
    printf '| %-18s | %10s | %8s | %6s |\n' "$name" "$cases" $((SECONDS - begun)) "$result"
}

row proofs $((20000 * factor)) PROPTEST_CASES -p allfold-schedules --test proofs
row engines $((20000 * factor)) PROPTEST_CASES -p allfold-timing --test time --test machines
row bounds $((200000 * factor)) BOUNDS_CASES -p allfold-timing --test bounds
row conformance $((2000 * factor)) PROPTEST_CASES -p allfold-tests --test conformance
row fault_schedules $((50000 * factor)) FAULT_SCHEDULES -p allfold-tests --test fault_schedules
row mutations $((200000 * factor)) ALLFOLD_MUTATIONS -p allfold-parsers --test mutations
row two_runs $((200 * factor)) TRIALS -p allfold-experiments --test launch of_two_runs
row full_disk $((200 * factor)) TRIALS -p allfold-experiments --test launch a_disk_that_fills
row stopped_rank $((200 * factor)) TRIALS -p allfold-experiments --test launch a_rank_that_is_stopped
row storms $((500 * factor)) STORMS -p allfold-experiments --test launch no_storm
row small_operations $((1000000 * factor)) OPERATIONS -p allfold-experiments --test many_operations
row strategies all STRATEGY_RANKS -p allfold-tests --test strategies
row shaped_links full SHAPED -p allfold-collectives --test shaped
exit $failed
