#!/usr/bin/env bash
# Find buildah, runc and mmdebstrap, which `make image` needs, or install Debian's. Says what it does; exits 1 with the way out if it cannot.
#   --if-possible    a machine that cannot have them is no failure
set -euo pipefail

packages="buildah runc mmdebstrap"

give_up() {
    echo "For the image, $1" >&2
    [ "${if_possible:-}" ] && exit 0
    exit 1
}

if_possible=
[ "${1:-}" != --if-possible ] || if_possible=yes

missing=
for name in $packages; do command -v "$name" >/dev/null 2>&1 || missing="$missing $name"; done
[ -n "$missing" ] || exit 0

command -v apt-get >/dev/null 2>&1 || give_up "install$missing with this system's package manager; mmdebstrap needs Debian or Ubuntu."
[ "$(id -u)" -eq 0 ] || give_up "run this as root, or install$missing by hand."
echo "installing$missing for the image ..." >&2
apt-get -qq update >&2 &&
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing >/dev/null ||
    give_up "install$missing by hand: apt-get failed."
