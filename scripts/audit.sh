#!/usr/bin/env bash
# Dependencies: licences that deny.toml allows, crates.io and nothing else; with --advisories also RustSec's known
# vulnerabilities, whose list comes from GitHub. Installs cargo-deny if it is missing (some minutes). Run it before a release.
set -euo pipefail
cd "$(dirname "$0")/.."
checks=(licenses bans sources)
case "${1:-}" in
    "") ;;
    --advisories) checks+=(advisories) ;;
    *)
        echo "error: ${1} is unknown: there is --advisories" >&2
        exit 2
        ;;
esac
command -v cargo-deny > /dev/null || cargo install --locked cargo-deny
cargo deny check "${checks[@]}"
