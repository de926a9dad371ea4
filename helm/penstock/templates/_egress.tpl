{{- /* Ports of a rule, as JSON: each of .ports by each of .protocols. Numbers, because not every network knows the ports of pods by name. */ -}}
{{- define "penstock.egressPorts" -}}
{{- $found := list -}}
{{- range $port := .ports | uniq -}}
{{- range $protocol := $.protocols -}}
{{- $found = append $found (dict "protocol" $protocol "port" (int $port)) -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- /* The rule for the store, as JSON. */ -}}
{{- define "penstock.egressStore" -}}
{{- $egress := .Values.networkPolicy.egress -}}
{{- $peers := $egress.store -}}
{{- $ports := $egress.storePorts -}}
{{- if .Values.moto.enabled -}}
{{- $peers = list (dict "podSelector" (dict "matchLabels" (include "penstock.selector" (dict "root" . "role" "moto") | fromYaml))) -}}
{{- $ports = list 9000 -}}
{{- else -}}
{{- $url := urlParse (.Values.store.endpoint | default "https://s3") -}}
{{- $host := regexReplaceAll ":[0-9]*$" $url.host "" -}}
{{- if and (not $peers) (regexMatch "^[0-9]+(\\.[0-9]+){3}$" $host) -}}
{{- $peers = list (dict "ipBlock" (dict "cidr" (printf "%s/32" $host))) -}}
{{- end -}}
{{- if not $peers -}}
{{- fail "networkPolicy.egress.store is missing: policies know addresses and not names, so list the peers of the store, as in [{ipBlock: {cidr: 10.0.0.0/8}}], or [{ipBlock: {cidr: 0.0.0.0/0}}] for S3 at any address" -}}
{{- end -}}
{{- if not $ports -}}
{{- $ports = list (regexFind "[0-9]+$" (regexFind ":[0-9]+$" $url.host) | default (ternary "80" "443" (eq $url.scheme "http"))) -}}
{{- end -}}
{{- end -}}
{{- dict "to" $peers "ports" (include "penstock.egressPorts" (dict "ports" $ports "protocols" (list "TCP")) | fromJsonArray) | toJson -}}
{{- end -}}
