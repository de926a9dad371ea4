{{- /* The protocols of all listeners by name, as JSON. */ -}}
{{- define "penstock.protocols" -}}
{{- $found := dict .Values.listener.security .Values.listener.security -}}
{{- range $name, $listener := .Values.externalListeners -}}
{{- if hasKey $found $name -}}
{{- fail (printf "externalListeners.%s has the name of the first listener: choose another one" $name) -}}
{{- end -}}
{{- $_ := set $found $name ($listener.security | default $.Values.listener.security) -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- /* NAME:PROTOCOL of the external listeners; empty if all listeners are PLAINTEXT, which names mean by default. */ -}}
{{- define "penstock.protocolMap" -}}
{{- $protocols := fromJson (include "penstock.protocols" .) -}}
{{- $items := list -}}
{{- range $name := keys .Values.externalListeners | sortAlpha -}}
{{- $items = append $items (printf "%s:%s" $name (get $protocols $name)) -}}
{{- end -}}
{{- if ne (values $protocols | uniq | join ",") "PLAINTEXT" -}}
{{- join "," $items -}}
{{- end -}}
{{- end -}}

{{- /* Whether a listener has TLS without a secret of its own. */ -}}
{{- define "penstock.hasTls" -}}
{{- range $name, $protocol := fromJson (include "penstock.protocols" .) -}}
{{- if and (hasSuffix "SSL" $protocol) (not (dig $name "tlsSecret" "" $.Values.externalListeners)) }}yes{{ end -}}
{{- end -}}
{{- end -}}

{{- define "penstock.hasSasl" -}}
{{- if regexMatch ":\"SASL_" (include "penstock.protocols" .) }}yes{{ end -}}
{{- end -}}

{{- /* The secret with the certificate of the listeners without one of their own; empty: none of these has TLS. */ -}}
{{- define "penstock.listenerTlsSecret" -}}
{{- $tls := .Values.security.tls -}}
{{- if include "penstock.hasTls" . -}}
{{- if and $tls.secret $tls.certManager.enabled -}}
{{- fail "security.tls.secret and security.tls.certManager.enabled exclude each other: set one of them" -}}
{{- else if $tls.certManager.enabled -}}
{{- printf "%s-listener-tls" (include "penstock.fullname" .) -}}
{{- else -}}
{{- required "security.tls.secret is missing: a listener has TLS, so name a secret with tls-combined.pem and ca.crt, or set security.tls.certManager.enabled" $tls.secret -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The secret with the first users; empty: no listener has SASL. */ -}}
{{- define "penstock.usersSecret" -}}
{{- if include "penstock.hasSasl" . -}}
{{- required "security.sasl.usersSecret is missing: a listener has SASL, so name a secret with the key users, a line NAME:PASSWORD for each user" .Values.security.sasl.usersSecret -}}
{{- end -}}
{{- end -}}

{{- /* The secret with the certificate of a role for TLS between nodes; empty: no such TLS. */ -}}
{{- define "penstock.nodeTlsSecret" -}}
{{- $tls := .root.Values.nodeTls -}}
{{- if ne (empty $tls.controllerSecret) (empty $tls.brokerSecret) -}}
{{- fail "nodeTls.controllerSecret and nodeTls.brokerSecret belong together: set both or neither" -}}
{{- end -}}
{{- if and $tls.controllerSecret $tls.certManager.enabled -}}
{{- fail "nodeTls.controllerSecret and nodeTls.certManager.enabled exclude each other: set one of them" -}}
{{- end -}}
{{- if not (has .role (list "broker" "controller")) -}}
{{- /* Other pods do not connect to controllers, and have no certificate. */ -}}
{{- else if $tls.certManager.enabled -}}
{{- printf "%s-%s-tls" (include "penstock.fullname" .root) .role -}}
{{- else -}}
{{- ternary $tls.controllerSecret $tls.brokerSecret (eq .role "controller") -}}
{{- end -}}
{{- end -}}

{{- /* Refuse security of single listeners that would have no effect, as nodes do. */ -}}
{{- define "penstock.checkOwnSecurity" -}}
{{- $protocols := fromJson (include "penstock.protocols" .) -}}
{{- range $name, $listener := .Values.externalListeners -}}
{{- $protocol := get $protocols $name -}}
{{- if and $listener.tlsSecret (not (hasSuffix "SSL" $protocol)) -}}
{{- fail (printf "externalListeners.%s.tlsSecret has no effect, because the listener is %s: set its security to SSL or SASL_SSL, or remove the secret" $name $protocol) -}}
{{- end -}}
{{- if and $listener.saslMechanisms (not (hasPrefix "SASL" $protocol)) -}}
{{- fail (printf "externalListeners.%s.saslMechanisms has no effect, because the listener is %s: set its security to SASL_SSL or SASL_PLAINTEXT, or remove the mechanisms" $name $protocol) -}}
{{- end -}}
{{- $key := printf "listener.name.%s.sasl.enabled.mechanisms" (lower $name) -}}
{{- if and $listener.saslMechanisms (hasKey $.Values.config.broker $key) -}}
{{- fail (printf "externalListeners.%s.saslMechanisms and %s in config.broker exclude each other: set one of them" $name $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Refuse what nodes would refuse at their start: listeners that let everyone in. */ -}}
{{- define "penstock.checkSecurity" -}}
{{- if .Values.moto.enabled -}}
{{- $protocols := values (fromJson (include "penstock.protocols" .)) | uniq | join "," -}}
{{- if or (ne $protocols "PLAINTEXT") .Values.security.acls.enabled (include "penstock.nodeTlsSecret" (dict "root" . "role" "controller")) -}}
{{- fail "moto.enabled does not go with authentication, ACLs or TLS: its S3 server lets everyone who reaches it read and write all records. Set moto.enabled=false and name a store in store.bucket and store.endpoint" -}}
{{- end -}}
{{- end -}}
{{- if not .Values.security.allowInsecure -}}
{{- $accept := "or security.allowInsecure=true to let everyone in who reaches the pods (docs/how-to/kubernetes.md)" -}}
{{- range $name, $protocol := fromJson (include "penstock.protocols" .) -}}
{{- $value := ternary "listener.security" (printf "externalListeners.%s.security" $name) (eq $name $.Values.listener.security) -}}
{{- $ownAuth := printf "listener.name.%s.ssl.client.auth" (lower $name) -}}
{{- $clientAuth := get $.Values.config.broker $ownAuth | default (get $.Values.config.broker "ssl.client.auth") -}}
{{- if eq $protocol "PLAINTEXT" -}}
{{- fail (printf "the listener %s has no authentication: set %s=SASL_SSL (or SSL with client certificates), %s" $name $value $accept) -}}
{{- else if and (eq $protocol "SSL") (ne $clientAuth "required") -}}
{{- fail (printf "the listener %s (SSL) has no authentication: set ssl.client.auth or %s: required in config.broker, or %s=SASL_SSL, %s" $name $ownAuth $value $accept) -}}
{{- end -}}
{{- end -}}
{{- if not (include "penstock.nodeTlsSecret" (dict "root" . "role" "controller")) -}}
{{- fail (printf "the controllers have no TLS, so everyone who reaches them could register brokers and vote: set nodeTls.controllerSecret and nodeTls.brokerSecret, or nodeTls.certManager.enabled, %s" $accept) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Variables of brokers. */ -}}
{{- define "penstock.securityEnv" -}}
{{- with include "penstock.protocolMap" . }}
- name: PENSTOCK_LISTENER_SECURITY_PROTOCOL_MAP
  value: {{ . | quote }}
{{- end }}
{{- if include "penstock.protocolMap" . }}
- name: PENSTOCK_INTER_BROKER_LISTENER_NAME
  value: {{ .Values.listener.security }}
{{- end }}
{{- if include "penstock.listenerTlsSecret" . }}
- name: PENSTOCK_SSL_KEYSTORE_LOCATION
  value: /etc/penstock-listener-tls/tls-combined.pem
- name: PENSTOCK_SSL_TRUSTSTORE_LOCATION
  value: /etc/penstock-listener-tls/ca.crt
{{- end }}
{{- range $name, $listener := .Values.externalListeners }}
{{- with $listener.tlsSecret }}
- name: PENSTOCK_LISTENER_NAME_{{ $name }}_SSL_KEYSTORE_LOCATION
  value: /etc/penstock-listeners/{{ lower $name }}/tls-combined.pem
- name: PENSTOCK_LISTENER_NAME_{{ $name }}_SSL_TRUSTSTORE_LOCATION
  value: /etc/penstock-listeners/{{ lower $name }}/ca.crt
{{- end }}
{{- with $listener.saslMechanisms }}
- name: PENSTOCK_LISTENER_NAME_{{ $name }}_SASL_ENABLED_MECHANISMS
  value: {{ join "," . }}
{{- end }}
{{- end }}
{{- if include "penstock.usersSecret" . }}
- name: PENSTOCK_SASL_USERS_FILE
  value: /etc/penstock-users/users
- name: PENSTOCK_SASL_INTER_BROKER_USERNAME
  value: {{ .Values.security.sasl.interBrokerUser | quote }}
{{- end }}
{{- with .Values.security.sasl.delegationTokenSecret }}
- name: PENSTOCK_DELEGATION_TOKEN_SECRET_KEY
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: key
{{- end }}
{{- include "penstock.authorizerEnv" . }}
{{- end -}}

{{- /* Variables of brokers and controllers. */ -}}
{{- define "penstock.authorizerEnv" -}}
{{- with .Values.security.acls }}
{{- if .enabled }}
- name: PENSTOCK_AUTHORIZER_CLASS_NAME
  value: org.apache.kafka.metadata.authorizer.StandardAuthorizer
- name: PENSTOCK_SUPER_USERS
  value: {{ include "penstock.superUsers" $ | quote }}
- name: PENSTOCK_ALLOW_EVERYONE_IF_NO_ACL_FOUND
  value: {{ .allowEveryoneIfNoAclFound | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "penstock.superUsers" -}}
{{- $users := .Values.security.acls.superUsers -}}
{{- if include "penstock.hasSasl" . -}}
{{- $users = append $users (printf "User:%s" .Values.security.sasl.interBrokerUser) | uniq -}}
{{- end -}}
{{- join ";" $users -}}
{{- end -}}

{{- define "penstock.securityMounts" -}}
{{- if include "penstock.listenerTlsSecret" . }}
- {name: listener-tls, mountPath: /etc/penstock-listener-tls, readOnly: true}
{{- end }}
{{- if include "penstock.usersSecret" . }}
- {name: users, mountPath: /etc/penstock-users, readOnly: true}
{{- end }}
{{- end -}}

{{- define "penstock.securityVolumes" -}}
{{- with include "penstock.listenerTlsSecret" . }}
- name: listener-tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with include "penstock.usersSecret" . }}
- name: users
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{- /* The certificates of listeners with secrets of their own. */ -}}
{{- define "penstock.listenerMounts" -}}
{{- range $name, $listener := .Values.externalListeners }}
{{- if $listener.tlsSecret }}
- {name: listener-{{ lower $name | replace "_" "-" }}, mountPath: /etc/penstock-listeners/{{ lower $name }}, readOnly: true}
{{- end }}
{{- end }}
{{- end -}}

{{- define "penstock.listenerVolumes" -}}
{{- range $name, $listener := .Values.externalListeners }}
{{- if $listener.tlsSecret }}
- name: listener-{{ lower $name | replace "_" "-" }}
  secret: {secretName: {{ $listener.tlsSecret }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- end -}}

{{- /* Shell lines that write client properties for commands in pods of this release: the user, or the certificate, of the brokers. */ -}}
{{- define "penstock.commandConfig" -}}
{{- $protocol := .Values.listener.security -}}
{{- if ne $protocol "PLAINTEXT" -}}
export PENSTOCK_COMMAND_CONFIG=/tmp/client.properties
{
  echo security.protocol={{ $protocol }}
  {{- if hasPrefix "SASL" $protocol }}
  echo sasl.mechanism={{ get .Values.config.broker "sasl.mechanism.inter.broker.protocol" | default "SCRAM-SHA-512" }}
  echo sasl.username={{ .Values.security.sasl.interBrokerUser }}
  sed -n 's/^{{ .Values.security.sasl.interBrokerUser | replace "." "\\." }}:/sasl.password=/p' /etc/penstock-users/users
  {{- else }}
  echo ssl.keystore.location=/etc/penstock-listener-tls/tls-combined.pem
  {{- end }}
  {{- if hasSuffix "SSL" $protocol }}
  echo ssl.ca.location=/etc/penstock-listener-tls/ca.crt
  {{- end }}
} > "$PENSTOCK_COMMAND_CONFIG"
{{- end -}}
{{- end -}}

{{- /* The names under which clients reach brokers, as JSON. */ -}}
{{- define "penstock.listenerNames" -}}
{{- $service := printf "%s.%s.svc" (include "penstock.fullname" .) .Release.Namespace -}}
{{- $names := list (printf "*.%s" (include "penstock.brokerHost" .)) (printf "%s.%s" $service .Values.clusterDomain) $service (printf "%s.%s" (include "penstock.fullname" .) .Release.Namespace) (include "penstock.fullname" .) -}}
{{- range $listener := .Values.externalListeners -}}
{{- with $listener.host -}}
{{- range $id := concat (ternary (list "bootstrap") (list) (eq $listener.type "TLSRoute")) (until (int (include "penstock.brokersMax" $))) -}}
{{- $names = append $names ($listener.host | replace "{id}" (toString $id) | replace "{ordinal}" (toString $id) | replace "{pod}" (printf "%s-broker-%v" (include "penstock.fullname" $) $id)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- concat $names .Values.security.tls.certManager.dnsNames | uniq | toJson -}}
{{- end -}}
