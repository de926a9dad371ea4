{{- define "penstock.portName" -}}
{{- printf "x-%s" (lower . | replace "_" "-") | trunc 15 | trimSuffix "-" -}}
{{- end -}}

{{- /* The first listener: brokers connect to each other by it. Its name is its protocol. */ -}}
{{- define "penstock.listeners" -}}
{{- $listeners := list (printf "%s://%s:%d" .Values.listener.security .Values.bindAddress (int .Values.listener.port)) -}}
{{- range $name, $listener := .Values.externalListeners -}}
{{- $listeners = append $listeners (printf "%s://%s:%d" $name $.Values.bindAddress (int $listener.port)) -}}
{{- end -}}
{{- join "," $listeners -}}
{{- end -}}

{{- /* Advertised listeners, computed from the type of each listener. The broker replaces {id} with the pod's ordinal. */ -}}
{{- define "penstock.advertised" -}}
{{- $advertised := list (printf "%s://$(POD_NAME).%s:%d" .Values.listener.security (include "penstock.brokerHost" .) (int .Values.listener.port)) -}}
{{- range $name, $listener := .Values.externalListeners -}}
{{- $host := $listener.host -}}
{{- $port := $listener.advertisedPort -}}
{{- if eq $listener.type "NodePort" -}}
{{- if not $listener.firstNodePort -}}
{{- fail (printf "externalListeners.%s.firstNodePort is missing: broker N gets the node port firstNodePort + N, bootstrap servers have firstNodePort - 1; e.g. 31001" $name) -}}
{{- end -}}
{{- $host = $host | default "$(HOST_IP)" -}}
{{- $port = $port | default (printf "{id+%d}" (int $listener.firstNodePort)) -}}
{{- else -}}
{{- if hasSuffix "Route" $listener.type -}}
{{- $port = $port | default (ternary $listener.gatewayPort (printf "{id+%d}" (int $listener.gatewayPort)) (eq $listener.type "TLSRoute")) -}}
{{- end -}}
{{- if not $host -}}
{{- fail (printf "externalListeners.%s.host is missing: the name under which clients reach broker N, as in broker-{id}.kafka.example.com" $name) -}}
{{- end -}}
{{- $port = $port | default (int $listener.port) -}}
{{- end -}}
{{- $advertised = append $advertised (printf "%s://%s:%s" $name $host (toString $port)) -}}
{{- end -}}
{{- join "," $advertised -}}
{{- end -}}

{{- /* Maximum number of brokers: each has its own external Services. */ -}}
{{- define "penstock.brokersMax" -}}
{{- $brokers := .Values.brokers -}}
{{- ternary $brokers.autoscaling.maxReplicas $brokers.replicas $brokers.autoscaling.enabled -}}
{{- end -}}

{{- /* Ports of the pods of brokers differ. */ -}}
{{- define "penstock.checkPorts" -}}
{{- $taken := dict "9404" "the health listener" (toString .Values.listener.port) "listener.port" -}}
{{- if eq (int .Values.listener.port) 9404 -}}
{{- fail "listener.port=9404 is the port of the health listener: choose another one" -}}
{{- end -}}
{{- range $name, $listener := .Values.externalListeners -}}
{{- $port := toString (int $listener.port) -}}
{{- with get $taken $port -}}
{{- fail (printf "externalListeners.%s.port=%s is taken by %s: choose another one" $name $port .) -}}
{{- end -}}
{{- $_ := set $taken $port (printf "externalListeners.%s" $name) -}}
{{- end -}}
{{- end -}}

{{- /* `replicas` of the brokers. While an autoscaler decides, an upgrade keeps the number that it chose; rendering without a cluster leaves it out, so that tools which compare do not fight the autoscaler. */ -}}
{{- define "penstock.brokerReplicas" -}}
{{- $brokers := .Values.brokers -}}
{{- $live := lookup "apps/v1" "StatefulSet" .Release.Namespace (printf "%s-broker" (include "penstock.fullname" .)) -}}
{{- if .Values.recover.enabled -}}
replicas: 0
{{- else if not $brokers.autoscaling.enabled -}}
replicas: {{ $brokers.replicas }}
{{- else if $live -}}
{{- /* 0 after a recovery, and an autoscaler leaves 0 alone. */ -}}
replicas: {{ $live.spec.replicas | default $brokers.autoscaling.minReplicas }}
{{- end -}}
{{- end -}}
