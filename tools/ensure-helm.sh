#!/usr/bin/env bash
# Helm lints and renders the chart in tests: find it, or compile it with Go. Prints its path; exits 1 with the way out if it cannot.
# Compiled once, into the user's cache; minutes on a small machine. PENSTOCK_HELM names another one.
#   --find           only look
#   --if-possible    neither Helm nor Go is no failure: the chart's tests skip, and say so
set -euo pipefail

version=v3.22.0
# Helm's releases are linked with the Kubernetes version that `helm template` assumes; without it, that is 1.20, which the chart refuses.
kube_minor=34
cache="${XDG_CACHE_HOME:-$HOME/.cache}/penstock/bin"
built="$cache/helm-$version-kubernetes-1.$kube_minor"
for helm in "${PENSTOCK_HELM:-}" "$(command -v helm 2>/dev/null || true)" "$built"; do
    if [ -n "$helm" ] && [ -x "$helm" ] && "$helm" version --short >/dev/null 2>&1; then
        echo "$helm"
        exit 0
    fi
done

[ "${1:-}" != --find ] || exit 1
for go in "$(command -v go 2>/dev/null || true)" /usr/local/go/bin/go; do
    if [ -n "$go" ] && [ -x "$go" ]; then
        echo "compiling helm, once ..." >&2
        mkdir -p "$cache"
        # One package at a time: the linker alone wants a gigabyte.
        version_of=helm.sh/helm/v3/pkg/chartutil.k8sVersion
        GOFLAGS=-p=1 GOBIN="$cache" nice "$go" install -ldflags "-X ${version_of}Major=1 -X ${version_of}Minor=$kube_minor" helm.sh/helm/v3/cmd/helm@$version >&2
        mv "$cache/helm" "$built"
        echo "$built"
        exit 0
    fi
done
echo "The chart's tests need helm 3 and will be skipped. Install it (https://helm.sh/docs/intro/install), or Go, with which this script compiles it." >&2
[ "${1:-}" = --if-possible ]
