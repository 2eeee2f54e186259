#!/usr/bin/env bash
# Installs headers and libraries from NVIDIA's Python wheels into target/cuda12 and target/cuda13: what the tests of the
# binary interface and of discovery need, no GPU. CUDA 12 are the oldest versions that Allfold works with, CUDA 13 the newest.
#
# 2.6 GB to download, 2.1 GB on disk. They are kept in $ALLFOLD_CUDA_CACHE (default ~/.cache/allfold/cuda) and linked from
# there. NVIDIA's licence applies to them; they are installed, never shipped.
#
# Without network or pip it prints a message and installs nothing: those tests then print SKIP.
#
#   scripts/install-cuda-libraries.sh            both
#   scripts/install-cuda-libraries.sh cuda13     one
set -euo pipefail
cd "$(dirname "$0")/.."

# The driver's and the runtime's headers are of CUDA 12.8, the oldest driver.
cuda12=(
    nvidia-nccl-cu12==2.18.3 nvidia-cublas-cu12==12.1.3.1 nvidia-cudnn-cu12==9.1.0.70 nvidia-cuda-nvrtc-cu12==12.1.105
    nvidia-cuda-runtime-cu12==12.8.90 nvidia-cuda-nvcc-cu12==12.8.93 nvidia-cuda-cccl-cu12==12.8.90
)
cuda13=(
    nvidia-nccl-cu13==2.32.3 nvidia-cublas==13.10.0.20 nvidia-cudnn-cu13==9.28.1.4 nvidia-cuda-nvrtc==13.0.88
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85
)
cache=${ALLFOLD_CUDA_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/allfold/cuda}
mkdir -p target
mkdir -p "$cache" 2>/dev/null && [[ -w $cache ]] || cache=$PWD/target/cuda-cache
python=${PYTHON:-python3}

# Headers, and the libraries that are loaded without a GPU: not cuDNN's engines, which are most of it.
unpack() {
    "$python" - "$1" "$2" <<'END'
import os, sys, zipfile

WANTED = ("libnccl.so", "libcublasLt.so", "libnvrtc", "libcudnn.so", "libcudnn_graph.so", "libcudnn_ops.so", "libcudnn_cnn.so")
wheels, into = sys.argv[1:]
for wheel in sorted(os.listdir(wheels)):
    with zipfile.ZipFile(os.path.join(wheels, wheel)) as archive:
        for name in archive.namelist():
            base = os.path.basename(name)
            library = "/lib/" in name and base.startswith(WANTED) and ".alt." not in base and ".a" != base[-2:]
            if library or "/include/" in name:
                archive.extract(name, into)
    os.remove(os.path.join(wheels, wheel))
END
}

install() {
    local name=$1 wheels=("${@:2}")
    local folder
    folder=$cache/$name-$(printf '%s\n' "${wheels[@]}" | cksum | cut -d' ' -f1)
    if [[ ! -d $folder ]]; then
        # Another clone may install the same meanwhile: the first one is kept.
        parts=$folder.$BASHPID
        trap 'rm -rf "$parts"' EXIT
        mkdir -p "$parts/wheels"
        "$python" -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps \
            --only-binary :all: --dest "$parts/wheels" "${wheels[@]}"
        unpack "$parts/wheels" "$parts"
        rmdir "$parts/wheels"
        mv -T "$parts" "$folder" 2>/dev/null || [[ -d $folder ]]
    fi
    rm -rf "target/$name"
    ln -s "$folder" "target/$name"
}

[[ $# -gt 0 ]] || set -- cuda12 cuda13
jobs=()
for name in "$@"; do
    case $name in
        cuda12) install cuda12 "${cuda12[@]}" & ;;
        cuda13) install cuda13 "${cuda13[@]}" & ;;
        *) echo "install-cuda-libraries: $name is neither cuda12 nor cuda13" >&2; exit 1 ;;
    esac
    jobs+=($!)
done
for job in "${jobs[@]}"; do
    wait "$job" || echo "install-cuda-libraries: pip did not bring all; tests of NVIDIA's libraries are going to be skipped" >&2
done
