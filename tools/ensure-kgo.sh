#!/usr/bin/env bash
# The tests of franz-go's package kgo: find the program in build/kgo, or fetch the module through the Go proxy and compile it, at a pinned version.
# Prints its path; it runs in its folder. Compiled once; a minute of CPU.
#   --if-possible    a machine without Go is no failure: those tests skip, and say so
set -euo pipefail

cd "$(dirname "$0")/.."
module=github.com/twmb/franz-go@v1.22.3
built="$PWD/build/kgo"

if [ "$(cat "$built/version" 2>/dev/null || true)" != "$module" ] || [ ! -x "$built/kgo.test" ]; then
    go=$(command -v go || echo /usr/local/go/bin/go)
    if [ ! -x "$go" ]; then
        echo "The tests of franz-go need Go, which compiles them: https://go.dev/doc/install" >&2
        [ "${1:-}" = --if-possible ]
        exit 0
    fi
    echo "compiling the tests of $module, once ..." >&2
    mkdir -p "$built"
    source="$(cd "$built" && "$go" mod download -json "$module" | sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p')"
    (cd "$source" && GOWORK=off nice "$go" test -c -o "$built/kgo.test" ./pkg/kgo) >&2
    # One of the tests reads a source file, in its own folder as with `go test`.
    install -m 644 "$source"/pkg/kgo/*.go "$built"
    echo "$module" > "$built/version"
fi
echo "$built/kgo.test"
