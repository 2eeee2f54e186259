#!/usr/bin/env bash
# Installs what the `mpi` feature and the Open MPI peer need, on Debian and its kin: Open MPI itself, and libclang,
# from which the binding's build script reads Open MPI's header.
set -euo pipefail
if command -v mpicc >/dev/null && command -v mpirun >/dev/null && ls /usr/lib/llvm-*/lib/libclang.so* >/dev/null 2>&1; then
    exit 0
fi
if [ "$(id -u)" != 0 ]; then
    echo "install-mpi: needs root, or: apt-get install openmpi-bin libopenmpi-dev libclang-dev pkg-config" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
# A mirror that does not answer at once is tried again.
apt-get -o Acquire::Retries=3 update -qq
apt-get -o Acquire::Retries=3 install -y -qq --no-install-recommends openmpi-bin libopenmpi-dev libclang-dev pkg-config >/dev/null
