{{- /* The apiVersion of a kind of routes: the newest that the cluster serves; v1 without a cluster, as with `helm template`. */ -}}
{{- define "penstock.routeVersion" -}}
{{- $found := "" -}}
{{- range $version := list "v1alpha2" "v1alpha3" "v1" -}}
{{- if $.root.Capabilities.APIVersions.Has (printf "gateway.networking.k8s.io/%s/%s" $version $.kind) -}}
{{- $found = $version -}}
{{- end -}}
{{- end -}}
{{- if and (not $found) ($.root.Capabilities.APIVersions.Has "apps/v1/StatefulSet") -}}
{{- fail (printf "gateway.enabled: this cluster does not have the kind %s of gateway.networking.k8s.io: install Gateway API %s or newer" $.kind (ternary "1.5" "1.6" (eq $.kind "TLSRoute"))) -}}
{{- end -}}
{{- printf "gateway.networking.k8s.io/%s" ($found | default "v1") -}}
{{- end -}}

{{- /* The port of the Gateway for one broker, or for bootstrap. */ -}}
{{- define "penstock.gatewayPort" -}}
{{- $port := int .listener.gatewayPort -}}
{{- if eq .listener.type "TLSRoute" -}}
{{- $port -}}
{{- else if eq .id "bootstrap" -}}
{{- sub $port 1 -}}
{{- else -}}
{{- add $port (int .id) -}}
{{- end -}}
{{- end -}}

{{- /* The name of the listener with this port in a Gateway of the chart. TLSRoutes of several external listeners may share a port. */ -}}
{{- define "penstock.gatewaySection" -}}
{{- printf "%s-%s" (ternary "tls" "tcp" (eq .listener.type "TLSRoute")) (include "penstock.gatewayPort" .) -}}
{{- end -}}

{{- /* The listeners of a Gateway of the chart, as JSON. */ -}}
{{- define "penstock.gatewayListeners" -}}
{{- $found := dict -}}
{{- range $listener := .Values.externalListeners -}}
{{- if hasSuffix "Route" $listener.type -}}
{{- range $id := concat (list "bootstrap") (until (int (include "penstock.brokersMax" $))) -}}
{{- $route := dict "listener" $listener "id" (toString $id) -}}
{{- $section := include "penstock.gatewaySection" $route -}}
{{- $one := dict "name" $section "port" (include "penstock.gatewayPort" $route | int) "allowedRoutes" (dict "kinds" (list (dict "kind" $listener.type)) "namespaces" (dict "from" "Same")) -}}
{{- if eq $listener.type "TLSRoute" -}}
{{- $_ := set $one "protocol" "TLS" -}}
{{- $_ := set $one "tls" (dict "mode" "Passthrough") -}}
{{- else -}}
{{- $_ := set $one "protocol" "TCP" -}}
{{- end -}}
{{- $_ := set $found $section $one -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $listeners := list -}}
{{- range $section := keys $found | sortAlpha -}}
{{- $listeners = append $listeners (get $found $section) -}}
{{- end -}}
{{- toJson $listeners -}}
{{- end -}}

{{- /* Refuse listeners that no Gateway could serve. */ -}}
{{- define "penstock.checkGateway" -}}
{{- $protocols := fromJson (include "penstock.protocols" .) -}}
{{- $taken := dict -}}
{{- range $name, $listener := .Values.externalListeners -}}
{{- if hasSuffix "Route" $listener.type -}}
{{- if not $.Values.gateway.enabled -}}
{{- fail (printf "externalListeners.%s.type=%s needs gateway.enabled=true" $name $listener.type) -}}
{{- end -}}
{{- if not $listener.gatewayPort -}}
{{- fail (printf "externalListeners.%s.gatewayPort is missing: the port of the Gateway, as in 9094; with TCPRoute broker N has gatewayPort + N, bootstrap servers have gatewayPort - 1" $name) -}}
{{- end -}}
{{- if and (eq $listener.type "TLSRoute") (not (contains "{id}" ($listener.host | default ""))) -}}
{{- fail (printf "externalListeners.%s.host has to contain {id}, because the Gateway finds the broker of a TLSRoute by its host, as in broker-{id}.kafka.example.com" $name) -}}
{{- end -}}
{{- if and (eq $listener.type "TLSRoute") (not (hasSuffix "SSL" (get $protocols $name))) -}}
{{- fail (printf "externalListeners.%s: a Gateway finds the broker of a TLSRoute by the host in the TLS handshake: set externalListeners.%s.security=SASL_SSL (or SSL), or type=TCPRoute" $name $name) -}}
{{- end -}}
{{- range $id := ternary (list "bootstrap") (concat (list "bootstrap") (until (int (include "penstock.brokersMax" $)))) (eq $listener.type "TLSRoute") -}}
{{- $port := include "penstock.gatewayPort" (dict "listener" $listener "id" (toString $id)) -}}
{{- $other := get $taken $port -}}
{{- if and $other (ne $other "TLSRoute" | or (ne $listener.type "TLSRoute")) -}}
{{- fail (printf "externalListeners.%s: port %s of the Gateway is taken by another listener: choose another gatewayPort" $name $port) -}}
{{- end -}}
{{- $_ := set $taken $port $listener.type -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
