#!/usr/bin/env bash
# Installs Chromium, in which a test looks at the report's page, from Debian's package. Does nothing if it is installed. Without root
# or network it prints SKIP and installs nothing: the test is then skipped.
set -uo pipefail

for name in chromium chromium-browser google-chrome google-chrome-stable; do
    command -v "$name" >/dev/null && exit 0
done
export DEBIAN_FRONTEND=noninteractive
# A mirror that does not answer at once is tried again.
if [[ $(id -u) != 0 ]]; then
    echo "SKIP install-chromium: needs root, or: apt-get install chromium"
elif ! { apt-get -o Acquire::Retries=3 update -qq &&
    apt-get -o Acquire::Retries=3 install -y -qq --no-install-recommends chromium >/dev/null; }; then
    echo "SKIP install-chromium: apt-get did not bring it; the page of the report is not looked at"
fi
