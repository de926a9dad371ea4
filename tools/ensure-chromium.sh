#!/usr/bin/env bash
# Find Chromium and its driver, or install Debian's. The tests of the console need them. Says what it does; exits 1 with the way out if it cannot.
#   --if-possible    if they cannot be installed it is no failure: those tests skip, and say so
set -euo pipefail

give_up() {
    echo "For the tests of the console, $1"
    [ "${2:-}" = --if-possible ] && exit 0
    exit 1
}

command -v chromium >/dev/null 2>&1 && command -v chromedriver >/dev/null 2>&1 && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null && as_root=(sudo -n)
    [ ${#as_root[@]} -gt 0 ] || give_up "install chromium and chromium-driver as root." "${1:-}"
fi
command -v apt-get >/dev/null 2>&1 ||
    give_up "install chromium and chromedriver with this system's package manager." "${1:-}"
echo "installing chromium and chromium-driver for the tests of the console ..."
"${as_root[@]}" apt-get -qq update &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium chromium-driver >/dev/null ||
    give_up "install chromium and chromium-driver by hand: apt-get failed." "${1:-}"
