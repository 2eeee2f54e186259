#!/usr/bin/env bash
# Builds the Python package and installs it in target/python, an environment of this clone with what its tests need:
# `target/python/bin/pytest python` runs them, `target/python/bin/allfold` is the command.
#
# PyTorch, pytest, NumPy and maturin, which builds the wheel, are kept outside the clone, in $ALLFOLD_PYTHON_CACHE
# (default ~/.cache/allfold/python), and shared by all clones: 5.5 GB on disk, most of it PyTorch. The wheel is put into target/wheels.
#
# Without network or pip it prints a message and installs nothing: without PyTorch its tests print SKIP, without the rest all tests do.
#
#   scripts/python.sh                    all
#   scripts/python.sh --without-torch    without PyTorch, unless it is there already
#   scripts/python.sh --list             what would be installed where
set -euo pipefail
cd "$(dirname "$0")/.."

tools=("maturin>=1.9,<2" "pytest>=8" "numpy>=1.26" "pillow" "expecttest" "safetensors")
torch=("torch==2.15.0" "numpy>=1.26")
LARGEST=20000000

python=${PYTHON:-python3}
cache=${ALLFOLD_PYTHON_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/allfold/python}
mkdir -p target
mkdir -p "$cache" 2>/dev/null && [[ -w $cache ]] || cache=$PWD/target/python-cache
mkdir -p "$cache"

say() { echo "python.sh: $*" >&2; }

if ! tag=$("$python" -c 'import sys, sysconfig
assert sys.version_info >= (3, 11), "it is older"
print(sys.implementation.cache_tag, sysconfig.get_platform(), sep="-")' 2>/dev/null) ||
    ! "$python" -m pip --version >/dev/null 2>&1; then
    say "no Python 3.11 or newer with pip is here (PYTHON=/path/to/python3 names one); Python's tests are going to be skipped"
    exit 0
fi

unfinished=
trap '[[ -z $unfinished ]] || rm -rf "$unfinished"' EXIT

# The folder of a list of packages: another list or another Python has another.
folder_of() { echo "$cache/$1-$tag-$(printf '%s\n' "${@:2}" | cksum | cut -d' ' -f1)"; }

# Installs packages into their folder of the cache, unless they are there.
keep() {
    local folder parts
    folder=$(folder_of "$@")
    [[ -d $folder ]] && return
    # Another clone may install the same meanwhile: the second waits, and finds it installed. On a file system without locks the
    # first one is kept.
    exec 9>"$folder.lock"
    flock 9 2>/dev/null || true
    if [[ ! -d $folder ]]; then
        parts=$folder.$$
        unfinished=$parts
        "$python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --root-user-action=ignore \
            --only-binary :all: --target "$parts" "${@:2}" || return 1
        mv -T "$parts" "$folder" 2>/dev/null || [[ -d $folder ]] || return 1
        unfinished=
    fi
    exec 9>&-
}

with_torch=yes
case ${1:-} in
    "") ;;
    --without-torch) with_torch=no ;;
    --list)
        echo "$(folder_of tools "${tools[@]}"): ${tools[*]}"
        echo "$(folder_of torch "${torch[@]}"): ${torch[*]}"
        exit
        ;;
    *) say "$1 is neither --without-torch nor --list"; exit 2 ;;
esac

if ! keep tools "${tools[@]}"; then
    say "pip did not bring ${tools[*]}; Python's tests are going to be skipped"
    exit 0
fi
if [[ $with_torch = yes ]] && ! keep torch "${torch[@]}"; then
    say "pip did not bring ${torch[*]}; tests with PyTorch are going to be skipped"
fi

# An environment whose packages are the cache's. It is made again if another Python made it.
if [[ $(cat target/python/made-by 2>/dev/null) != "$tag" ]]; then
    rm -rf target/python
    "$python" -m venv --without-pip target/python
    echo "$tag" >target/python/made-by
fi
site=$(target/python/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
tools_in=$(folder_of tools "${tools[@]}") torch_in=$(folder_of torch "${torch[@]}")
# The first one wins: PyTorch goes with the NumPy that it was installed with.
for folder in "$torch_in" "$tools_in"; do
    [[ ! -d $folder ]] || echo "$folder"
done >"$site/allfold-cache.pth"
# `-P`: a program's own folder, not the one it is started in, is where its modules are looked for.
command_of() {
    printf '#!/bin/sh\nexec "%s/target/python/bin/python" -P -m %s "$@"\n' "$PWD" "$2" >"target/python/bin/$1"
    chmod +x "target/python/bin/$1"
}
command_of pytest pytest
command_of torchrun torch.distributed.run

# The release build's artefacts are used again, where it was made with the package: .ci/run does so.
rm -rf target/wheels
PATH=$tools_in/bin:$PWD/target/python/bin:$PATH maturin build --quiet --release -m python/Cargo.toml \
    -i target/python/bin/python -o target/wheels
wheel=$(echo target/wheels/allfold-*.whl)
size=$(stat -c %s "$wheel")
if ((size >= LARGEST)); then
    say "$wheel has $size bytes; a wheel must have less than $LARGEST"
    exit 1
fi
"$python" -m pip --python target/python/bin/python install --quiet --disable-pip-version-check --no-deps --no-index \
    --force-reinstall --root-user-action=ignore "$wheel"
echo "python.sh: $wheel, $size bytes; $(target/python/bin/allfold --version)"
