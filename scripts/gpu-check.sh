#!/usr/bin/env bash
# Everything that needs a GPU, in one command, on a machine that may have no Rust and no network.
#
#   scripts/gpu-check.sh --bundle           here, with Rust: builds the binaries into target/gpu-check
#   scripts/gpu-check.sh [FOLDER]           there: runs them (FOLDER is target/gpu-check if not given)
#   scripts/gpu-check.sh --dry-run [FOLDER] says what it would run
#
# CUDA, NCCL and cuDNN are found where PyTorch's or the system's packages put them. Under 8 minutes; every step has a limit.
# Where python3 has torch, every training run is followed by PyTorch's of the same, eager and compiled.
# Records go to FOLDER/records.jsonl: commit them as docs/results/gpu/COMMIT.jsonl.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)

dry=no
case "${1:-}" in
    --dry-run) dry=yes; shift ;;
    --bundle)
        cd "$here"
        cargo build --release --quiet
        built() { # the newest executable of a target, as cargo names it
            "${@:2}" --no-run --message-format=json | sed -n 's/.*"name":"'"$1"'".*"executable":"\([^"]*\)".*/\1/p' | tail -1
        }
        rm -rf target/gpu-check
        mkdir -p target/gpu-check
        cp target/release/allfold target/gpu-check/
        cp "$(built cuda_kernels cargo test -q -p allfold-kernels --features shim --test cuda_kernels)" target/gpu-check/cuda_kernels
        cp "$(built allfold_collectives cargo test -q -p allfold-collectives --lib)" target/gpu-check/collectives
        cp "$(built allfold_trainer cargo test -q -p allfold-trainer --lib)" target/gpu-check/trainer
        cp "$(built gpu cargo bench -q -p allfold-collectives --bench gpu)" target/gpu-check/gpu
        cp -r experiments/configs/gpu target/gpu-check/configs
        cp benches/peers/torch_gpu.py target/gpu-check/
        git rev-parse HEAD >target/gpu-check/commit
        cp scripts/gpu-check.sh target/gpu-check/
        strip target/gpu-check/{allfold,cuda_kernels,collectives,trainer,gpu}
        ls -l target/gpu-check
        exit 0 ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "gpu-check: unknown flag $1; there are --bundle and --dry-run" >&2; exit 2 ;;
esac
folder=$(realpath -m "${1:-$here/target/gpu-check}")

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
export NCCL_MULTI_RANK_GPU_ENABLE=1 ALLFOLD_RECORDS="$folder/records.jsonl"

# PyTorch's record is printed and kept with ours.
# shellcheck disable=SC2317 # called by `bash -c`, to which it is exported
peer() {
    local line
    line=$("$interpreter" "$folder/torch_gpu.py" "$@") || return
    echo "$line" | tee -a "$ALLFOLD_RECORDS"
}
export -f peer
export interpreter folder

failed=0 budget=480
step() { # step SECONDS WHAT COMMAND...
    local limit=$1 what=$2
    shift 2
    if [[ $dry == yes ]]; then
        printf '%-44s up to %3d s: %s\n' "$what" "$limit" "${*/#$folder\//}"
        return
    fi
    if ((SECONDS + 5 > budget)); then
        echo "SKIP $what: the $budget seconds are used up"
        return
    fi
    ((SECONDS + limit <= budget)) || limit=$((budget - SECONDS))
    echo "== $what"
    local begun=$SECONDS
    if timeout "$limit" bash -c '"$@"' - "$@"; then
        echo "== ok in $((SECONDS - begun)) s: $what"
    else
        echo "== FAILED ($?) after $((SECONDS - begun)) s: $what"
        failed=1
    fi
}

if [[ $dry == no ]]; then
    [[ -x $folder/gpu ]] || { echo "gpu-check: no binaries in $folder; build them with scripts/gpu-check.sh --bundle" >&2; exit 2; }
    rm -f "$ALLFOLD_RECORDS"
    echo "commit $(cat "$folder/commit")"
fi
step 20 "what is here" "$folder/allfold" doctor
if [[ $dry == no ]] && ! "$folder/allfold" doctor | grep -q '^cuda  *yes'; then
    echo "gpu-check: there is no GPU that could be used; what is missing stands above" >&2
    exit 1
fi
step 120 "kernel parity: every kernel against the CPU" "$folder/cuda_kernels" gpu --exact --nocapture
step 90 "conformance: every algorithm, both forms" "$folder/collectives" every_algorithm_on_a_gpu --nocapture
step 60 "bandwidth: kernels against a copy" "$folder/gpu" kernels 512
step 60 "bandwidth: 8 ranks on the devices there are" "$folder/gpu" device 64
step 90 "NCCL with 1, 2, 4 and 8 ranks" "$folder/gpu" nccl 256
step 60 "training parity: the CPU's losses" env ALLFOLD_TEST_GPU=1 "$folder/trainer" cuda::tests --test-threads=1
step 30 "bench: the device backend" "$folder/allfold" bench all_reduce --backend device --ranks 8 -b 1M -e 64M -f 8 --json "$ALLFOLD_RECORDS"
step 40 "bench: NCCL native, 2 ranks" "$folder/allfold" bench all_reduce --backend nccl --ranks 2 -b 8 -e 64M -f 64 --json "$ALLFOLD_RECORDS"

# The same models beside PyTorch; what is not there is said and passed over.
torch=no
if [[ -n $interpreter ]] && { [[ $dry == yes ]] || "$interpreter" -c 'import torch' 2>/dev/null; }; then torch=yes; fi
[[ $torch == yes ]] || echo "SKIP PyTorch: no python with torch here"
for model in mlp resnet18 resnet50 gpt2; do
    step 60 "training: $model" "$folder/allfold" train --config "$folder/configs/$model.toml" --device cuda --json "$ALLFOLD_RECORDS"
    if [[ $torch == yes ]]; then
        for mode in eager compile; do
            step 90 "PyTorch $mode: $model" peer "$model" "$mode"
        done
    fi
done
[[ $dry == yes ]] || echo "records: $ALLFOLD_RECORDS"
exit $failed
