#!/usr/bin/env bash
# librdkafka's own test programs: find them in build/librdkafka, or fetch Debian's source package by apt-get and compile it.
# Prints the folder of its tests. Compiled once; a minute of CPU.
#   --if-possible    where that cannot be done it is no failure: those tests skip, and say so
set -euo pipefail

cd "$(dirname "$0")/.."
version=2.8.0 revision=1 suite=trixie
built="$PWD/build/librdkafka" patch="$PWD/tests/interop/librdkafka/kafka-4.2.patch"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
source="$built/librdkafka-$version"
made="$version-$revision $(sha256sum "$patch")"

give_up() {
    echo "The tests of librdkafka $1." >&2
    [ "${2:-}" = --if-possible ] && exit 0
    exit 1
}

if [ "$(cat "$built/made" 2>/dev/null || true)" != "$made" ]; then
    for name in apt-get gcc g++ make patch; do
        command -v "$name" >/dev/null 2>&1 || give_up "need $name, on Debian" "${1:-}"
    done
    echo '#include <openssl/ssl.h>' | gcc -E - >/dev/null 2>&1 || give_up "need the headers of OpenSSL: apt-get install libssl-dev" "${1:-}"
    mirror="$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' 'Component: main' 2>/dev/null | head -1)"
    [ -n "$mirror" ] && [ -r "$keyring" ] || give_up "need a machine whose packages come from Debian" "${1:-}"
    rm -rf "$built"
    mkdir -p "$built/apt/lists/partial" "$built/apt/cache/archives/partial"
    echo "deb-src [signed-by=$keyring] $mirror $suite main" > "$built/apt/sources.list"
    # Lists of its own: what the system installs, and from where, stays as it is.
    apt=(apt-get -qq -o "Dir::Etc::SourceList=$built/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$built/apt/lists" -o "Dir::Cache=$built/apt/cache" -o APT::Sandbox::User=)
    "${apt[@]}" update >&2 && (cd "$built" && "${apt[@]}" source --download-only "librdkafka=$version-$revision" >&2) ||
        give_up "need its source package, which apt-get cannot fetch" "${1:-}"
    echo "compiling librdkafka $version, once ..." >&2
    tar -C "$built" -xf "$built/librdkafka_$version.orig.tar.gz"
    patch -s -d "$source" -p1 < "$patch" >&2
    (
        cd "$source"
        ./configure --disable-gssapi --disable-zstd --disable-curl --disable-optimization
        nice make -j2 libs
        nice make -j2 -C tests build
    ) > "$built/log" 2>&1 || give_up "do not compile: see $built/log" "${1:-}"
    rm -rf "$built/apt"
    echo "$made" > "$built/made"
fi
echo "$source/tests"
