#!/usr/bin/env bash
# Checks the examples for clusters: the Slurm script by shellcheck (Debian's), the Kubernetes manifest against the API's
# published schemas by kubernetes-validate (PyPI's). Installs either where it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v shellcheck >/dev/null || { apt-get update -qq && apt-get install --yes --no-install-recommends shellcheck; }
shellcheck examples/slurm/*.sbatch scripts/*.sh .ci/run
# sbatch reads the directives: each must be one of these.
known='job-name|nodes|ntasks-per-node|gpus-per-node|gpu-bind|cpus-per-task|time|requeue|signal|output'
if grep -hE '^#SBATCH' examples/slurm/*.sbatch | grep -vE "^#SBATCH --($known)(=|$)"; then
    echo "a directive that sbatch may not know" >&2
    exit 1
fi

venv=target/examples-venv
if [ ! -x "$venv/bin/kubernetes-validate" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet 'kubernetes-validate==1.37.*'
fi
"$venv/bin/kubernetes-validate" --strict examples/kubernetes/*.yaml
