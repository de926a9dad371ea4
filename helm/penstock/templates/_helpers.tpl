{{- define "penstock.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains "penstock" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-penstock" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* The cluster id. It cannot be changed later: it is part of every key in the bucket. */ -}}
{{- define "penstock.clusterId" -}}
{{- .Values.clusterId | default (printf "%s-%s" .Release.Namespace (include "penstock.fullname" .) | trunc 64 | trimSuffix "-") -}}
{{- end -}}

{{- define "penstock.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .role }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: penstock
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "penstock.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "penstock.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "penstock.controllerHost" -}}
{{- printf "%s-controllers.%s.svc.%s" (include "penstock.fullname" .) .Release.Namespace .Values.clusterDomain -}}
{{- end -}}

{{- define "penstock.brokerHost" -}}
{{- printf "%s-brokers.%s.svc.%s" (include "penstock.fullname" .) .Release.Namespace .Values.clusterDomain -}}
{{- end -}}

{{- define "penstock.bootstrap" -}}
{{- printf "%s.%s.svc.%s:%d" (include "penstock.fullname" .) .Release.Namespace .Values.clusterDomain (int .Values.listener.port) -}}
{{- end -}}

{{- /* id@host:port of each controller, for the first start of a cluster. */ -}}
{{- define "penstock.voters" -}}
{{- $voters := list -}}
{{- range $id := until (int .Values.controllers.replicas) -}}
{{- $voters = append $voters (printf "%d@%s-controller-%d.%s:9093" $id (include "penstock.fullname" $) $id (include "penstock.controllerHost" $)) -}}
{{- end -}}
{{- join "," $voters -}}
{{- end -}}

{{- define "penstock.controllerAddresses" -}}
{{- regexReplaceAll "(^|,)[0-9]+@" (include "penstock.voters" .) "${1}" -}}
{{- end -}}

{{- define "penstock.store" -}}
{{- $store := .Values.store -}}
{{- $parameters := list -}}
{{- $endpoint := $store.endpoint -}}
{{- if .Values.moto.enabled -}}
{{- $endpoint = printf "http://%s-moto.%s.svc.%s:9000" (include "penstock.fullname" .) .Release.Namespace .Values.clusterDomain -}}
{{- end -}}
{{- if not $store.bucket -}}
{{- fail "store.bucket is missing: name the bucket in which all data are, as in --set store.bucket=my-bucket; to try it out without one: -f values-dev.yaml" -}}
{{- end -}}
{{- with $endpoint }}{{ $parameters = append $parameters (printf "endpoint=%s" (urlquery .)) }}{{ end -}}
{{- if and .Values.moto.enabled (ne $store.type "s3") -}}
{{- fail (printf "moto.enabled needs store.type=s3, not %s" $store.type) -}}
{{- end -}}
{{- if and (ne $store.type "s3") (or $store.region $store.caSecret $store.credentials.accessKeyId) -}}
{{- fail (printf "store.region, store.caSecret and store.credentials.accessKeyId are for store.type=s3, not %s" $store.type) -}}
{{- end -}}
{{- if and (eq $store.type "az") (not $store.account) -}}
{{- fail "store.account is missing: name the storage account, as in --set store.account=myaccount" -}}
{{- end -}}
{{- with $store.region }}{{ $parameters = append $parameters (printf "region=%s" (urlquery .)) }}{{ end -}}
{{- range $name, $value := $store.parameters }}{{ $parameters = append $parameters (printf "%s=%s" $name (urlquery (toString $value))) }}{{ end -}}
{{- printf "%s://%s%s%s%s" $store.type (eq $store.type "az" | ternary (printf "%s/" $store.account) "") $store.bucket (ternary "" (printf "/%s" (trimAll "/" $store.prefix)) (empty $store.prefix)) (ternary "" (printf "?%s" (join "&" $parameters)) (empty $parameters)) -}}
{{- end -}}

{{- define "penstock.credentialsSecret" -}}
{{- $credentials := .Values.store.credentials -}}
{{- if $credentials.existingSecret -}}
{{- $credentials.existingSecret -}}
{{- else if or $credentials.accessKeyId .Values.moto.enabled -}}
{{- printf "%s-store" (include "penstock.fullname" .) -}}
{{- end -}}
{{- end -}}

{{- /* Label of the pods that get the identity of their service account from AKS. */ -}}
{{- define "penstock.identityLabel" -}}
{{- if and (eq .Values.store.type "az") (not .Values.store.credentials.existingSecret) -}}
azure.workload.identity/use: "true"
{{- end -}}
{{- end -}}

{{- /* URL of the WAL store; empty if there is none. */ -}}
{{- define "penstock.walStore" -}}
{{- if and .Values.wal.store .Values.wal.claim -}}
{{- fail "wal.store and wal.claim are both set: the WALs are in a bucket or on a volume" -}}
{{- end -}}
{{- empty .Values.wal.claim | ternary .Values.wal.store "file:/var/lib/penstock-wals" -}}
{{- end -}}

{{- /* Variables of every node: the store and its credentials. */ -}}
{{- define "penstock.commonEnv" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: PENSTOCK_STORE
  value: {{ include "penstock.store" . | quote }}
{{- with include "penstock.walStore" . }}
- name: PENSTOCK_WAL_STORE
  value: {{ . | quote }}
{{- end }}
{{- $secret := include "penstock.credentialsSecret" . }}
{{- if and $secret (eq .Values.store.type "gs") }}
- name: GOOGLE_APPLICATION_CREDENTIALS
  value: /etc/penstock-store-credentials/credentials.json
{{- else if and $secret (eq .Values.store.type "az") }}
{{- range list "AZURE_STORAGE_ACCOUNT_KEY" "AZURE_STORAGE_SAS_TOKEN" }}
- name: {{ . }}
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: {{ . }}, optional: true}}
{{- end }}
{{- else if $secret }}
{{- with $secret }}
- name: AWS_ACCESS_KEY_ID
  valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $.Values.store.credentials.accessKeyIdKey }}}}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $.Values.store.credentials.secretAccessKeyKey }}}}
{{- end }}
{{- end }}
{{- if .Values.store.caSecret }}
- name: AWS_CA_BUNDLE
  value: /etc/penstock-store-ca/ca.crt
{{- end }}
- name: PENSTOCK_CONFIG
  value: /etc/penstock/penstock.toml
- name: PENSTOCK_HEALTH_LISTENER
  value: "{{ .Values.bindAddress }}:9404"
- name: PENSTOCK_ALLOW_INSECURE
  value: {{ .Values.security.allowInsecure | quote }}
{{- end -}}

{{- define "penstock.nodeTlsEnv" -}}
{{- if include "penstock.nodeTlsSecret" . -}}
- name: PENSTOCK_CONTROLLER_SSL_CERTIFICATE_LOCATION
  value: /etc/penstock-tls/tls.crt
- name: PENSTOCK_CONTROLLER_SSL_KEY_LOCATION
  value: /etc/penstock-tls/tls.key
- name: PENSTOCK_CONTROLLER_SSL_CA_LOCATION
  value: /etc/penstock-tls/ca.crt
{{- end -}}
{{- end -}}

{{- /* Format one value as TOML. */ -}}
{{- define "penstock.toml" -}}
{{- if kindIs "slice" . -}}
[{{ range $index, $value := . }}{{ if $index }}, {{ end }}{{ toJson (toString $value) }}{{ end }}]
{{- else if kindIs "string" . -}}
{{ toJson . }}
{{- else if kindIs "float64" . -}}
{{ if eq (floor .) . }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end -}}

{{- /* A quantity of Kubernetes, as 1.5Gi, in bytes. */ -}}
{{- define "penstock.bytes" -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $text := toString . -}}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- if not (hasKey $units $unit) -}}
{{- fail (printf "brokers.resources.limits.memory=%s: use a unit of %s, or set brokers.memorySettings=false" $text (keys $units | sortAlpha | join " ")) -}}
{{- end -}}
{{- mulf (trimSuffix $unit $text | float64) (get $units $unit) | int64 -}}
{{- end -}}

{{- /* Settings of brokers for their memory limit, as JSON: 200 MiB are for the process; of the rest a quarter stays free. */ -}}
{{- define "penstock.memorySettings" -}}
{{- $found := dict -}}
{{- $limit := dig "limits" "memory" "" .Values.brokers.resources -}}
{{- if and .Values.brokers.memorySettings $limit -}}
{{- $rest := max 0 (sub (include "penstock.bytes" $limit) 209715200) -}}
{{- $_ := set $found "log.cache.max.bytes" (div (mul $rest 30) 100 | max 134217728) -}}
{{- $_ := set $found "block.cache.max.bytes" (div (mul $rest 15) 100 | max 16777216) -}}
{{- $request := get .Values.config.broker "socket.request.max.bytes" | default 104857600 -}}
{{- if not (kindIs "string" $request) -}}
{{- $_ := set $found "queued.max.request.bytes" (div (mul $rest 30) 100 | max (int64 $request)) -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- define "penstock.configFile" -}}
{{- range $role := list "broker" "controller" }}
[{{ $role }}]
{{- $settings := index $.Values.config $role }}
{{- if eq $role "broker" }}
{{- $settings = merge (dict) $settings (include "penstock.memorySettings" $ | fromJson) }}
{{- end }}
{{- range $name, $value := $settings }}
{{ toJson $name }} = {{ include "penstock.toml" $value }}
{{- end }}
{{ end -}}
{{- end -}}

{{- /* Probes: /startz has started, /livez works, /readyz may serve clients. */ -}}
{{- define "penstock.probes" -}}
{{- range $name, $path := dict "startup" "/startz" "liveness" "/livez" "readiness" "/readyz" }}
{{ $name }}Probe:
  httpGet: {path: {{ $path }}, port: health}
  {{- toYaml (get $.probes $name) | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The strategy of a StatefulSet. Without a partition, Kubernetes makes deleted pods anew from the old template until an upgrade is done. */ -}}
{{- define "penstock.updateStrategy" -}}
{{- $strategy := .updateStrategy -}}
{{- if eq (toString $strategy.type) "RollingUpdate" -}}
{{- $strategy = merge (dict) $strategy (dict "rollingUpdate" (dict "partition" 0)) -}}
{{- end -}}
{{- toYaml $strategy -}}
{{- end -}}

{{- /* Placement of the pods of a role. `soft` prefers one node per pod, `hard` requires it. */ -}}
{{- define "penstock.placement" -}}
{{- $role := .role -}}
{{- $values := .values -}}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- if $values.affinity }}
affinity: {{- toYaml $values.affinity | nindent 2 }}
{{- else if eq $values.antiAffinity "hard" }}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- include "penstock.selector" (dict "root" .root "role" $role) | nindent 12 }}
{{- else if eq $values.antiAffinity "soft" }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "penstock.selector" (dict "root" .root "role" $role) | nindent 14 }}
{{- end }}
{{- if $values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range $constraint := $values.topologySpreadConstraints }}
  - {{- mergeOverwrite (dict "labelSelector" (dict "matchLabels" (include "penstock.selector" (dict "root" $.root "role" $role) | fromYaml))) $constraint | toYaml | nindent 4 }}
  {{- end }}
{{- else if ne $values.zoneSpread "none" }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: {{ ternary "DoNotSchedule" "ScheduleAnyway" (eq $values.zoneSpread "hard") }}
    labelSelector:
      matchLabels: {{- include "penstock.selector" (dict "root" .root "role" $role) | nindent 8 }}
{{- end }}
{{- end -}}

{{- define "penstock.podCommon" -}}
serviceAccountName: {{ include "penstock.serviceAccountName" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- end -}}

{{- /* Volumes of a role: .values are those of the role. */ -}}
{{- define "penstock.commonVolumes" -}}
- name: config
  configMap: {name: {{ include "penstock.fullname" .root }}-config}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- with .root.Values.store.caSecret }}
- name: store-ca
  secret: {secretName: {{ . }}}
{{- end }}
{{- if and (eq .root.Values.store.type "gs") .root.Values.store.credentials.existingSecret }}
- name: store-credentials
  secret: {secretName: {{ .root.Values.store.credentials.existingSecret }}}
{{- end }}
{{- with include "penstock.nodeTlsSecret" . }}
- name: node-tls
  secret: {secretName: {{ . }}}
{{- end }}
{{- with .root.Values.wal.claim }}
- name: wals
  persistentVolumeClaim: {claimName: {{ . }}}
{{- end }}
{{- with .values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "penstock.commonMounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if .root.Values.store.caSecret }}
- {name: store-ca, mountPath: /etc/penstock-store-ca, readOnly: true}
{{- end }}
{{- if and (eq .root.Values.store.type "gs") .root.Values.store.credentials.existingSecret }}
- {name: store-credentials, mountPath: /etc/penstock-store-credentials, readOnly: true}
{{- end }}
{{- if include "penstock.nodeTlsSecret" . }}
- {name: node-tls, mountPath: /etc/penstock-tls, readOnly: true}
{{- end }}
{{- if .root.Values.wal.claim }}
- {name: wals, mountPath: /var/lib/penstock-wals}
{{- end }}
{{- with .values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* What restarts the pods of a role when it changes: settings, and credentials that the chart made. */ -}}
{{- define "penstock.checksum" -}}
{{- $credentials := .root.Values.store.credentials -}}
{{- toJson (list (index .root.Values.config .role) (eq .role "broker" | ternary (include "penstock.memorySettings" .root) "") (include "penstock.credentialsSecret" .root) $credentials.accessKeyId $credentials.secretAccessKey) | sha256sum -}}
{{- end -}}
