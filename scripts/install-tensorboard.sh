#!/usr/bin/env bash
# Installs TensorBoard, whose loader a test reads our event files with, into target/tensorboard. Without network or pip it
# prints a message and installs nothing: the test then prints SKIP.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

[[ -e target/tensorboard/installed ]] && exit 0
python=${PYTHON:-python3}
rm -rf target/tensorboard
mkdir -p target/tensorboard
if "$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
    --target target/tensorboard tensorboard setuptools; then
    touch target/tensorboard/installed
else
    echo "install-tensorboard: pip did not bring it; the test of event files is going to be skipped" >&2
    rm -rf target/tensorboard
fi
