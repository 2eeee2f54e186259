#!/usr/bin/env bash
# Installs what the test of shaped links needs: `ip` and `tc`, from Debian's package. Does nothing if both are installed.
set -euo pipefail
command -v ip >/dev/null && command -v tc >/dev/null && exit 0
apt-get update -qq
apt-get install --yes --no-install-recommends iproute2
