#!/usr/bin/env bash
# `make kubernetes` installs the chart on a real API server with real controllers, and enforces its network policies: compile all that with
# Go, install etcd, dnsmasq and iptables, and get the definitions of Gateway API.
# Compiled once, into the user's cache; half an hour on 2 cores. Prints the directory; exits 1 with the way out if it cannot.
set -euo pipefail
cd "$(dirname "$0")/../tests/kubernetes"

version=$(sed -n 's/^require k8s.io\/kubernetes //p' go.mod)
gateway_api=sigs.k8s.io/gateway-api@v1.6.3
bin="${XDG_CACHE_HOME:-$HOME/.cache}/penstock/kubernetes-$version"
go=$(command -v go || echo /usr/local/go/bin/go)
[ -x "$go" ] || { echo "Go is missing; it compiles the API server of Kubernetes for the tests of the chart." >&2; exit 1; }

missing=
command -v etcd >/dev/null || missing="etcd-server"
command -v dnsmasq >/dev/null || missing="$missing dnsmasq-base"
command -v iptables >/dev/null || missing="$missing iptables"
if [ -n "$missing" ]; then
    echo "installing $missing ..." >&2
    { [ "$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; } >&2 \
        || { echo "Programs are missing and could not be installed; install the packages $missing." >&2; exit 1; }
fi

# Without these, the servers call themselves v0.0.0, and charts refuse them.
stamped=k8s.io/component-base/version
IFS=. read -r major minor _ <<< "${version#v}"
flags="-s -w -X $stamped.gitVersion=$version -X $stamped.gitMajor=$major -X $stamped.gitMinor=$minor"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp go.mod "$work"
for server in kube-apiserver kube-controller-manager kube-scheduler; do
    [ ! -x "$bin/$server" ] || continue
    echo "compiling $server $version, once ..." >&2
    mkdir -p "$bin"
    # Sums are checked by the proxy's database; go.sum is written anew in the copy.
    (cd "$work" && CGO_ENABLED=0 nice "$go" build -mod=mod -trimpath -ldflags "$flags" -o "$bin/$server.new" "k8s.io/kubernetes/cmd/$server") >&2
    mv "$bin/$server.new" "$bin/$server"
done
definitions="$bin/gateway-api"
if [ "$(cat "$definitions/version" 2>/dev/null || true)" != "$gateway_api" ]; then
    module=$(cd "$work" && "$go" mod download -json "$gateway_api" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    mkdir -p "$definitions"
    for kind in gateways tlsroutes tcproutes; do
        install -m 644 "$module/config/crd/standard/gateway.networking.k8s.io_$kind.yaml" "$definitions"
    done
    echo "$gateway_api" > "$definitions/version"
fi
# Minutes at first, and a second or two where Go has compiled it before.
(cd policies && CGO_ENABLED=0 nice "$go" build -trimpath -ldflags "-s -w" -o "$bin/policies" .) >&2
echo "$bin"
