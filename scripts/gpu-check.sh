#!/usr/bin/env bash
# Everything that needs a GPU, in one command, on a machine that may have no Rust and no network.
#
#   scripts/gpu-check.sh --bundle           here, with Rust: builds the binaries into target/gpu-check
#   scripts/gpu-check.sh [FOLDER]           there: runs them (FOLDER is target/gpu-check if not given)
#   scripts/gpu-check.sh --part A [FOLDER]  runs one part, within 9 minutes; several parts are written as AB
#   scripts/gpu-check.sh --dry-run [..]     says what it would run
#
# Part A: processes over NCCL, parity, conformance. B: training beside PyTorch, NCCL at 20 and 2000 calls. C: our kernels under
# ncu. D: compute-sanitizer. Without --part A and B run, within 9 minutes: every step has a limit, and the last ones are skipped
# when the time is used up. CUDA, NCCL and cuDNN are found where PyTorch's or the system's packages put them. Where python3 has
# torch, every training run is followed by PyTorch's run of the same model, eager and compiled. Ends with a table.
# Exit code: 0 all is well, 1 a step failed, 3 there is no GPU, 4 steps were skipped for time.
# Records go to FOLDER/records.jsonl: commit them as docs/results/gpu/COMMIT.jsonl.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)

dry=no parts=AB
while [[ ${1:-} == --dry-run || ${1:-} == --part ]]; do
    case "$1" in
        --dry-run) dry=yes; shift ;;
        --part)
            parts=${2:-}
            [[ $parts =~ ^[ABCD]+$ ]] || { echo "gpu-check: --part ${parts:-without a value}: give A, B, C or D, or several, such as AB" >&2; exit 2; }
            shift 2 ;;
    esac
done
case "${1:-}" in
    --bundle)
        cd "$here"
        # As the gate builds them, so that its results are used again.
        cargo build --release --quiet --workspace --bin allfold
        tests=$(cargo test --quiet --workspace --lib --test cuda --test cuda_kernels --bench gpu --no-run --message-format=json)
        built() { # the executable of a target, as cargo names it
            sed -n 's/.*"name":"'"$1"'".*"executable":"\([^"]*\)".*/\1/p' <<<"$tests" | tail -1
        }
        rm -rf target/gpu-check
        mkdir -p target/gpu-check
        cp target/release/allfold target/gpu-check/
        cp "$(built cuda_kernels)" target/gpu-check/cuda_kernels
        cp "$(built allfold_gpu)" target/gpu-check/collectives
        cp "$(built cuda)" target/gpu-check/trainer
        cp "$(built gpu)" target/gpu-check/gpu
        cp -r experiments/configs/gpu target/gpu-check/configs
        cp benches/peers/{torch_gpu,nccl_direct}.py target/gpu-check/
        git rev-parse HEAD >target/gpu-check/commit
        cp scripts/gpu-check.sh target/gpu-check/
        strip target/gpu-check/{allfold,cuda_kernels,collectives,trainer,gpu}
        tar -cJf target/gpu-check.tar.xz -C target gpu-check
        ls -l target/gpu-check target/gpu-check.tar.xz
        (($(stat -c %s target/gpu-check.tar.xz) < 50 << 20)) || { echo "gpu-check: the bundle has more than 50 MiB" >&2; exit 1; }
        exit 0 ;;
    -h | --help) sed -n '2,17s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "gpu-check: unknown flag $1; there are --bundle, --part and --dry-run" >&2; exit 2 ;;
esac
folder=$(realpath -m "${1:-$here/target/gpu-check}")
# From here on in that folder, so that records name no path of a machine.
[[ ! -d $folder ]] || cd "$folder"

# Wheels put libraries under site-packages/nvidia/PACKAGE/lib.
interpreter=
for python in python3 python; do
    command -v $python >/dev/null || continue
    interpreter=$python
    wheels=$($python -c 'import glob, site, sys
roots = site.getsitepackages() + [site.getusersitepackages()] + sys.path
print(":".join(dict.fromkeys(lib for root in roots for lib in sorted(glob.glob(root + "/nvidia/*/lib")))))' 2>/dev/null) || continue
    export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$wheels"
    break
done
# Ranks that share a GPU need a stream each that waits for no other; allfold sets the same by itself.
export NCCL_MULTI_RANK_GPU_ENABLE=1 CUDA_DEVICE_MAX_CONNECTIONS=32 ALLFOLD_RECORDS=records.jsonl

# A peer's records are printed and kept with ours.
# shellcheck disable=SC2317 # called by `bash -c`, to which it is exported
peer() {
    local lines
    lines=$("$interpreter" "$1" "${@:2}") || return
    echo "$lines" | tee -a "$ALLFOLD_RECORDS"
}
export -f peer
export interpreter

# One row of the table per record; rows that PyTorch has too show the ratio to PyTorch.
table() {
    [[ -s $ALLFOLD_RECORDS ]] || return 0
    awk '
        function of(name,    at, rest) {
            at = index($0, "\"" name "\":")
            if (!at) return ""
            rest = substr($0, at + length(name) + 3)
            sub(/^ */, "", rest)
            if (substr(rest, 1, 1) == "\"") { rest = substr(rest, 2); sub(/".*/, "", rest) } else sub(/[,}].*/, "", rest)
            return rest
        }
        function row(part, name, value, unit, beside) { printf "%-9s %-38s %12s %-9s %s\n", part, name, value, unit, beside }
        { kind = of("kind") }
        kind == "gpu_kernel" || kind == "gpu_device" {
            row(substr(kind, 5), of("name"), sprintf("%.1f", of("gbps")), "GB/s", sprintf("%.1f %% of a copy", 100 * of("gbps") / of("copy_gbps")))
            if (of("name") == "adamw_f32") adamw = of("gbps")
        }
        kind == "gpu_nccl" {
            name = of("collective") ", " of("ranks") " ranks, " of("bytes") " B"
            nccl[name] = of("time_us")
            row("nccl", name, sprintf("%.1f", of("time_us")), "us", "NCCL estimates " of("nccl_estimate_us") " us")
        }
        kind == "nccl_direct" {
            name = of("collective") ", " of("ranks") " ranks, " of("bytes") " B"
            beside = name in nccl ? sprintf("ours takes %.3f of it", nccl[name] / of("time_us")) : ""
            row("alone", name, sprintf("%.1f", of("time_us")), "us", beside)
        }
        kind == "collective" {
            name = of("collective") " by " of("algorithm") ", " of("ranks") " ranks, " of("bytes") " B"
            row(of("backend"), name, sprintf("%.1f", of("time_us")), "us", of("wrong_elements") == "0" ? "right" : "wrong: " of("wrong_elements"))
        }
        kind == "train" && of("samples_per_s") != "" {
            steady = of("steady_samples_per_s")
            if (of("ranks") == 1) ours[of("model")] = steady
            name = of("model") (of("ranks") == 1 ? "" : ", " of("ranks") " ranks")
            row("train", name, sprintf("%.0f", steady), "samples/s", sprintf("%.0f over all steps", of("samples_per_s")))
        }
        kind == "peer" {
            name = of("model") ", PyTorch " of("mode")
            if (of("gbps") != "") {
                beside = of("model") == "adamw" && adamw ? sprintf("ours is %.2f of it", adamw / of("gbps")) : ""
                row("peer", name, sprintf("%.1f", of("gbps")), "GB/s", beside)
            } else {
                # GPT-2 counts sequences here and tokens there.
                model = of("model") == "gpt2" ? "gpt" : of("model")
                times = of("model") == "gpt2" ? 1024 : 1
                beside = model in ours ? sprintf("ours is %.2f of it", times * ours[model] / of("samples_per_s")) : ""
                row("peer", name, sprintf("%.0f", of("samples_per_s")), times > 1 ? "tokens/s" : "samples/s", beside)
            }
        }
        END {
            print "Training counts the median step after the first third of the steps, here and in PyTorch: what comes before"
            print "compiles kernels and searches for algorithms. Kernels and NCCL: one call is not counted, then the best stretch."
        }' "$ALLFOLD_RECORDS"
}

failed=0 skipped=0 budget=540 group=A
step() { # step SECONDS WHAT COMMAND...
    local limit=$1 what=$2
    shift 2
    [[ $parts == *$group* ]] || return 0
    if [[ $dry == yes ]]; then
        printf '%-44s up to %3d s: %s\n' "$what" "$limit" "$*"
        return
    fi
    if ((SECONDS + 5 > budget)); then
        echo "SKIP $what: the $budget seconds are used up"
        # What torch.compile has no time for is no part of the check.
        [[ $what == "PyTorch compile"* ]] || skipped=1
        return
    fi
    ((SECONDS + limit <= budget)) || limit=$((budget - SECONDS))
    echo "== $what"
    local begun=$SECONDS
    # A program that waits for a device may not react to the first signal.
    if timeout -k 5 "$limit" bash -c '"$@"' - "$@"; then
        echo "== ok in $((SECONDS - begun)) s: $what"
    else
        echo "== FAILED ($?) after $((SECONDS - begun)) s: $what"
        failed=1
    fi
}

if [[ $dry == no ]]; then
    [[ -d $folder && -x gpu ]] || { echo "gpu-check: no binaries in $folder; build them with scripts/gpu-check.sh --bundle" >&2; exit 2; }
    rm -f "$ALLFOLD_RECORDS"
    echo "commit $(cat commit)"
fi
step 5 "what is here" ./allfold doctor
doctor=
[[ $dry == yes ]] || doctor=$(./allfold doctor) || doctor=
if [[ $dry == no ]] && ! grep -q '^cuda  *yes' <<<"$doctor"; then
    # Everything starts, says what is missing, and does nothing else.
    without() { # without WHAT COMMAND...
        local said
        said=$(timeout 60 "${@:2}" 2>&1) || true
        if ! said=$(grep -m 1 -E 'SKIP|error:' <<<"$said"); then
            said="FAILED: nothing was said of a GPU"
            failed=1
        fi
        printf '%-28s %s\n' "$1" "$said"
    }
    without "kernel parity" ./cuda_kernels gpu --exact --nocapture
    without "conformance" ./collectives every_algorithm_on_a_gpu --nocapture
    without "bandwidth, NCCL" ./gpu kernels 16
    without "bench, device" ./allfold bench all_reduce --backend device --ranks 8
    without "bench, NCCL" ./allfold bench all_reduce --backend nccl --ranks 2
    for model in mlp resnet18 resnet50 gpt2; do
        without "training: $model" ./allfold train --config "configs/$model.toml"
    done
    echo "gpu-check: there is no GPU that could be used; what is missing stands above" >&2
    ((failed)) && exit 1
    exit 3
fi

# Whether NCCL takes so many ranks here: a GPU for each, or a version that lets ranks share one.
# shellcheck disable=SC2317
own_gpus() { # own_gpus RANKS
    local gpus nccl
    [[ $dry == no ]] || return 0
    gpus=$(sed -n 's/^cuda  *yes  *\([0-9]*\) GPUs.*/\1/p' <<<"$doctor")
    nccl=$(sed -n 's/^nccl  *yes  *\([0-9]*\)\.\([0-9]*\)\..*/\1 \2/p' <<<"$doctor")
    [[ -n $nccl ]] || return 0 # The part itself says that NCCL is missing.
    ((${gpus:-0} >= $1)) || { read -r major minor <<<"$nccl" && ((major > 2 || (major == 2 && minor >= 30))); }
}

# Two processes as two nodes on one GPU: NCCL tells hosts apart by NCCL_HOSTID, and lets ranks of two hosts use one GPU.
# shellcheck disable=SC2317 # called by `bash -c`, to which it is exported
two_nodes() { # two_nodes COMMAND...
    local node job=()
    for node in 0 1; do
        NCCL_HOSTID="node$node" NCCL_SOCKET_IFNAME=lo ./allfold launch -n 1 --nnodes 2 --node-rank "$node" \
            --rdzv 127.0.0.1:29571 -- "$@" &
        job+=($!)
    done
    wait "${job[0]}" && wait "${job[1]}"
}
export -f two_nodes
step 15 "processes: all-reduce by NCCL, as two nodes" two_nodes bench all_reduce --backend nccl -b 8 -e 1M -f 64 --json "$ALLFOLD_RECORDS"
step 15 "processes: mlp over NCCL, as two nodes" two_nodes train --config configs/mlp.toml --device cuda --set 'exchange="nccl"' --steps 60 --json "$ALLFOLD_RECORDS"
step 15 "processes: mlp over the host" ./allfold launch -n 2 -- train --config configs/mlp.toml --device cuda --set 'exchange="host"' --steps 60 --json "$ALLFOLD_RECORDS"
step 48 "kernel parity: every kernel against the CPU" ./cuda_kernels gpu --exact --nocapture
step 35 "conformance: devices and NCCL" ./collectives every_algorithm_on_a_gpu --nocapture
step 20 "bandwidth: kernels against a copy" ./gpu kernels 512
step 20 "bandwidth: 8 ranks on the devices there are" ./gpu device 64
step 45 "NCCL with 1, 2, 4 and 8 ranks" ./gpu nccl 256
[[ -z $interpreter ]] || step 20 "NCCL alone, called from Python" peer nccl_direct.py 256
step 40 "training parity: the CPU's losses" env ALLFOLD_TEST_GPU=1 ./trainer --skip ends:: --skip ways:: --test-threads=8
step 12 "bench: the device backend" ./allfold bench all_reduce --backend device --ranks 8 -b 1M -e 64M -f 8 --json "$ALLFOLD_RECORDS"
if own_gpus 2; then
    step 12 "bench: NCCL native, 2 ranks" ./allfold bench all_reduce --backend nccl --ranks 2 -b 8 -e 64M -f 64 --json "$ALLFOLD_RECORDS"
else
    echo "SKIP bench: NCCL native, 2 ranks: ranks that share a GPU need NCCL 2.30 or newer"
fi

group=B
if own_gpus 2; then
    for calls in 20 2000; do
        step 6 "bench: NCCL native, 2 ranks, $calls calls" ./allfold bench all_reduce --backend nccl --ranks 2 -b 8 -e 8 -n "$calls" --json "$ALLFOLD_RECORDS"
    done
fi
# Where there is one GPU, both ranks are on it, and add up by the fused kernel.
step 12 "training: mlp on 2 ranks" ./allfold train --config configs/mlp.toml --device cuda --ranks 2 --json "$ALLFOLD_RECORDS"
step 12 "training: mlp on a GPU and the CPU" ./allfold train --config configs/mlp.toml --device cuda:0,cpu --ranks 2 --set 'parallel.shares=[60,4]' --steps 60 --json "$ALLFOLD_RECORDS"

# The same models in PyTorch; missing packages are reported and their runs skipped.
torch=no
if [[ -n $interpreter ]] && { [[ $dry == yes ]] || "$interpreter" -c 'import torch' 2>/dev/null; }; then torch=yes; fi
[[ $torch == yes ]] || echo "SKIP PyTorch: no python with torch here"
if [[ $torch == yes ]]; then
    step 10 "PyTorch: a copy" peer torch_gpu.py copy eager
    step 10 "PyTorch: AdamW, fused" peer torch_gpu.py adamw eager
fi
# The limits up to here and of this loop add up to the budget; what they leave is for torch.compile, which is slow to start.
for part in "mlp 12 15" "resnet18 12 30" "resnet50 30 30" "gpt2 20 30"; do
    read -r model own theirs <<<"$part"
    step "$own" "training: $model" ./allfold train --config "configs/$model.toml" --device cuda --json "$ALLFOLD_RECORDS"
    if [[ $torch == yes ]]; then step "$theirs" "PyTorch eager: $model" peer torch_gpu.py "$model" eager; fi
done
for model in gpt2 resnet50 resnet18 mlp; do
    if [[ $torch == yes ]]; then step 90 "PyTorch compile: $model" peer torch_gpu.py "$model" compile; fi
done
group=C
for model in resnet50 gpt2; do
    step 200 "ncu: $model" ncu --clock-control none --target-processes all --csv --log-file "ncu-$model.csv" ./allfold train --config "configs/$model.toml" --device cuda --steps 1
done
group=D
for tool in memcheck racecheck synccheck; do
    step 150 "compute-sanitizer: $tool" compute-sanitizer --tool "$tool" --error-exitcode 1 ./cuda_kernels gpu --exact
done
if [[ $dry == no ]]; then
    echo "== in short"
    table
    echo "records: $ALLFOLD_RECORDS"
fi
((failed)) && exit 1
((skipped)) && exit 4
exit 0
