{{- define "penstock.portName" -}}
{{- printf "x-%s" (lower . | replace "_" "-") | trunc 15 | trimSuffix "-" -}}
{{- end -}}

{{- /* The first listener: brokers connect to each other by it. Its name is its protocol. */ -}}
{{- define "penstock.listeners" -}}
{{- $listeners := list (printf "%s://0.0.0.0:%d" .Values.listener.security (int .Values.listener.port)) -}}
{{- range $name, $listener := .Values.externalListeners -}}
{{- $listeners = append $listeners (printf "%s://0.0.0.0:%d" $name (int $listener.port)) -}}
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
