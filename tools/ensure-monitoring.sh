#!/usr/bin/env bash
# `make monitoring` runs Prometheus, promtool and a check by Grafana's schema: find them in build/prometheus, or compile them with Go, at pinned
# versions. Prints the directory; exits 1 with the way out if it cannot. Compiled once; 10 minutes on 2 cores.
set -euo pipefail
cd "$(dirname "$0")/.."

# Prometheus 3.16.
module=github.com/prometheus/prometheus
version=v0.316.0
bin="$PWD/build/prometheus"
go=$(command -v go || echo /usr/local/go/bin/go)
[ -x "$go" ] || { echo "Go is missing; it compiles Prometheus for the tests of alerts and dashboards: https://go.dev/doc/install" >&2; exit 1; }
mkdir -p "$bin"
if [ "$(cat "$bin/version" 2>/dev/null || true)" != "$version" ]; then
    for program in promtool prometheus; do
        echo "compiling $program $version, once ..." >&2
        # Without the clients of clouds, by which Prometheus could find targets. One package at a time: the linker wants a gigabyte.
        GOFLAGS="-p=1 -tags=remove_all_sd" GOBIN="$bin" CGO_ENABLED=0 nice "$go" install "$module/cmd/$program@$version" >&2
    done
    echo "$version" > "$bin/version"
fi
# A second or two where Go has compiled it before.
(cd tests/monitoring/dashboards && CGO_ENABLED=0 nice "$go" build -o "$bin/dashboards" .) >&2
echo "$bin"
