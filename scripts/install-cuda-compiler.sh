#!/usr/bin/env bash
# Installs NVRTC and ptxas from NVIDIA's Python wheels into target/cuda: what compiles the CUDA kernels, no GPU needed.
# 191 MB to download, 489 MB on disk. NVIDIA's licence applies to them; they are installed, never shipped.
set -euo pipefail
cd "$(dirname "$0")/.."

# CUDA 13.0: every driver of 13 takes its PTX. registers.txt is recorded with these very versions.
wheels=(
    nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-nvcc==13.0.88
    nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-cccl==13.0.85
)
stamp="target/cuda/installed-$(printf '%s\n' "${wheels[@]}" | cksum | cut -d' ' -f1)"
[[ -e $stamp ]] && exit 0
python=${PYTHON:-python3}
command -v "$python" >/dev/null || { echo "install-cuda-compiler: needs python3 with pip" >&2; exit 1; }
rm -rf target/cuda
mkdir -p target
"$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
    --no-deps --target target/cuda "${wheels[@]}"
touch "$stamp"
