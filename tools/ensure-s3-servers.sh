#!/usr/bin/env bash
# S3 servers for tests, versitygw and MinIO: find them in build/s3-servers, or compile them with Go, at pinned versions.
# Prints the path of each. Compiled once for each version; 2 to 5 minutes each on 2 cores. Names as arguments select some.
#   --if-possible    a machine without Go is no failure: the tests of these servers skip, and say so
set -euo pipefail

cd "$(dirname "$0")/.."
servers="$PWD/build/s3-servers"

version_of() {
    case "$1" in
        versitygw) echo github.com/versity/versitygw/cmd/versitygw@v1.8.0 ;;
        minio) echo github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c ;;
        *) echo "unknown server $1; there are versitygw and minio" >&2; exit 2 ;;
    esac
}

if_possible=
[ "${1:-}" != --if-possible ] || { if_possible=yes; shift; }
[ $# -gt 0 ] || set -- versitygw minio

go="$(command -v go 2>/dev/null || true)"
[ -n "$go" ] || [ ! -x /usr/local/go/bin/go ] || go=/usr/local/go/bin/go
for name in "$@"; do
    package="$(version_of "$name")"
    if [ "$(cat "$servers/$name.version" 2>/dev/null || true)" != "$package" ] || [ ! -x "$servers/$name" ]; then
        if [ -z "$go" ]; then
            echo "The tests with versitygw and MinIO need Go, which compiles them, and will be skipped. Install it: https://go.dev/doc/install" >&2
            [ -n "$if_possible" ]
            exit 0
        fi
        echo "compiling $package, once ..." >&2
        mkdir -p "$servers"
        # One package at a time: the linker alone wants a gigabyte.
        GOFLAGS=-p=1 GOBIN="$servers" nice "$go" install "$package" >&2
        echo "$package" > "$servers/$name.version"
    fi
    echo "$servers/$name"
done
