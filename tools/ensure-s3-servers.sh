#!/usr/bin/env bash
# S3 servers for tests, versitygw, MinIO and SeaweedFS: find them in build/s3-servers, or compile them with Go, at pinned versions.
# Prints the path of each. Compiled once for each version; 2 to 10 minutes each on 2 cores. Names as arguments select some.
#   --if-possible    a server that cannot be compiled is no failure: its tests skip, and `make stores` says so
set -euo pipefail

cd "$(dirname "$0")/.."
servers="$PWD/build/s3-servers"

version_of() {
    case "$1" in
        versitygw) echo github.com/versity/versitygw/cmd/versitygw@v1.8.0 ;;
        minio) echo github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c ;;
        seaweedfs) echo github.com/seaweedfs/seaweedfs/weed@v0.0.0-20261109003541-7506e5f91cd6 ;;
        *) echo "unknown server $1; there are versitygw, minio and seaweedfs" >&2; exit 2 ;;
    esac
}

# One package at a time: the linker alone wants a gigabyte. `go install` refuses modules with replace directives, as SeaweedFS has.
compile() {
    export GOFLAGS="${GOFLAGS:--p=1}"
    if [ "$1" != seaweedfs ]; then
        GOBIN="$servers" nice "$go" install "$2"
        return
    fi
    local source
    source="$("$go" mod download -json "${2/\/weed@/@}" | sed -n 's/.*"Dir": "\(.*\)",$/\1/p')"
    nice "$go" build -C "$source/weed" -o "$servers/$1" .
}

if_possible=
[ "${1:-}" != --if-possible ] || { if_possible=yes; shift; }
[ $# -gt 0 ] || set -- versitygw minio seaweedfs

go="$(command -v go 2>/dev/null || true)"
[ -n "$go" ] || [ ! -x /usr/local/go/bin/go ] || go=/usr/local/go/bin/go
for name in "$@"; do
    package="$(version_of "$name")"
    if [ "$(cat "$servers/$name.version" 2>/dev/null || true)" != "$package" ] || [ ! -x "$servers/$name" ]; then
        if [ -z "$go" ]; then
            echo "The tests with $* need Go, which compiles them, and will be skipped. Install it: https://go.dev/doc/install" >&2
            [ -n "$if_possible" ]
            exit 0
        fi
        echo "compiling $package, once ..." >&2
        mkdir -p "$servers"
        if ! compile "$name" "$package" >&2; then
            echo "$name cannot be compiled, and its tests will be skipped" >&2
            [ -n "$if_possible" ]
            continue
        fi
        echo "$package" > "$servers/$name.version"
    fi
    echo "$servers/$name"
done
