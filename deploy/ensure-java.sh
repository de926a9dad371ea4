#!/usr/bin/env bash
# Spark needs Java 17 or newer, nothing else of Penstock does: find it, or install Debian's. Says what it does; exits 1 with the way out if it cannot.
set -euo pipefail

version() { "$1" -version 2>&1 | sed -nE '1s/.*version "([0-9]+).*/\1/p'; }

for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" java; do
    if [ -n "$java" ] && command -v "$java" >/dev/null 2>&1 && [ "$(version "$java")" -ge 17 ] 2>/dev/null; then
        exit 0
    fi
done

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null && as_root=(sudo -n)
    [ ${#as_root[@]} -gt 0 ] || { echo "Spark needs Java 17 or newer. Install openjdk-17-jre-headless as root, or set JAVA_HOME."; exit 1; }
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "Spark needs Java 17 or newer. Install one with this system's package manager (macOS: brew install openjdk@17), or set JAVA_HOME."
    exit 1
fi
echo "installing Java for Spark ..."
"${as_root[@]}" apt-get -qq update
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends openjdk-17-jre-headless >/dev/null
