#!/usr/bin/env bash
# The members of groups in tests/interop/clients/members: compile them with the clients in its go.mod, which come through the Go proxy.
# Prints the path of the program. Compiled once into the user's cache; 20 s of CPU.
#   --if-possible    a machine without Go is no failure: those tests skip, and say so
set -euo pipefail

cd "$(dirname "$0")/../tests/interop/clients/members"
digest=$(cat go.mod go.sum main.go | sha256sum | cut -c 1-16)
built="${XDG_CACHE_HOME:-$HOME/.cache}/penstock/go-members"
program="$built/members-$digest"

if [ ! -x "$program" ]; then
    go=$(command -v go || echo /usr/local/go/bin/go)
    if [ ! -x "$go" ]; then
        echo "The tests of Go clients need Go, which compiles them: https://go.dev/doc/install" >&2
        [ "${1:-}" = --if-possible ]
        exit 0
    fi
    echo "compiling members of groups with Go clients, once ..." >&2
    mkdir -p "$built"
    CGO_ENABLED=0 GOWORK=off nice "$go" build -trimpath -ldflags "-s -w" -o "$program.$$" . >&2
    find "$built" -name "members-*" ! -name "*.$$" -delete
    mv "$program.$$" "$program"
fi
echo "$program"
