#!/usr/bin/env bash
# Installs NVRTC and ptxas, which compile the CUDA kernels, from NVIDIA's Python wheels into target/cuda. No GPU is needed.
# 191 MB to download, 489 MB on disk. They are kept in $ALLFOLD_CUDA_CACHE (default ~/.cache/allfold/cuda) and linked from
# there. NVIDIA's licence applies to them; they are installed, never shipped.
set -euo pipefail
cd "$(dirname "$0")/.."

# CUDA 13.0: every driver of 13 takes its PTX. registers.txt is recorded with these very versions.
wheels=(
    nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-nvcc==13.0.88
    nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-cccl==13.0.85
)
cache=${ALLFOLD_CUDA_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/allfold/cuda}
mkdir -p target
mkdir -p "$cache" 2>/dev/null && [[ -w $cache ]] || cache=$PWD/target/cuda-cache
folder=$cache/compiler-$(printf '%s\n' "${wheels[@]}" | cksum | cut -d' ' -f1)
if [[ ! -d $folder ]]; then
    python=${PYTHON:-python3}
    command -v "$python" >/dev/null || { echo "install-cuda-compiler: needs python3 with pip" >&2; exit 1; }
    # Another clone may install the same meanwhile: the first one is kept.
    parts=$folder.$$
    trap 'rm -rf "$parts"' EXIT
    "$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-cache-dir \
        --no-deps --target "$parts" "${wheels[@]}"
    mv -T "$parts" "$folder" 2>/dev/null || [[ -d $folder ]]
fi
rm -rf target/cuda
ln -s "$folder" target/cuda
