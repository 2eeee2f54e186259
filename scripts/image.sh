#!/usr/bin/env bash
# The steps of the Dockerfile, which run without a container as well:
#
#   scripts/image.sh build PREFIX      builds the command and installs it into PREFIX, from the repository's root
#   scripts/image.sh install PREFIX    installs the command that is built already
#   scripts/image.sh check PREFIX      runs the installed command: its version, a proof, a simulation and training
set -euo pipefail

step=${1:?build, install or check}
prefix=${2:?the folder that the command is installed into}

install_into() {
    install -D "${CARGO_TARGET_DIR:-target}/release/allfold" "$prefix/bin/allfold"
    install -D -m 644 experiments/configs/digits-mlp.toml "$prefix/share/allfold/digits-mlp.toml"
}

case $step in
build)
    cargo build --release --locked -p allfold-experiments --bin allfold
    install_into
    ;;
install)
    install_into
    ;;
check)
    allfold=$prefix/bin/allfold
    "$allfold" --version
    "$allfold" verify all_reduce --algo ring --ranks 1..8
    "$allfold" simulate all_reduce --topology dgx-a100 --ranks 16 --algo ring -b 1M -e 1M
    "$allfold" train --config "$prefix/share/allfold/digits-mlp.toml" --ranks 2 --steps 5
    ;;
*)
    echo "error: $step is no step; give build, install or check" >&2
    exit 2
    ;;
esac
