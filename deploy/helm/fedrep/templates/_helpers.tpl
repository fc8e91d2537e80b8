{{- define "fedrep.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "fedrep.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "fedrep.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "fedrep.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Called with (list $ "component"). */ -}}
{{- define "fedrep.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "fedrep.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "fedrep.labels" -}}
{{- $root := index . 0 -}}
{{ include "fedrep.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: fedrep
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Called with (list $ "server"); registry, repository and tag of one of the three images. */ -}}
{{- define "fedrep.image" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
{{- $repository := get $root.Values.image $part -}}
{{- $tag := default $root.Chart.AppVersion $root.Values.image.tag -}}
{{- if eq $part "client" -}}
{{- $tag = printf "%s-%s" $tag $root.Values.image.clientVariant -}}
{{- if eq $root.Values.image.clientVariant "cuda" -}}{{- $part = "clientCuda" -}}{{- end -}}
{{- end -}}
{{- $image := printf "%s:%s" $repository $tag -}}
{{- with get $root.Values.image.digests $part -}}{{- $image = printf "%s@%s" $repository . -}}{{- end -}}
{{- with $root.Values.image.registry -}}{{ trimSuffix "/" . }}/{{- end -}}{{ $image }}
{{- end -}}

{{- define "fedrep.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "fedrep.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* Settings as TOML: plain values first, then one table per section, because TOML wants it so. */ -}}
{{- define "fedrep.toml" -}}
{{- range $key, $value := . }}
{{- if not (or (kindIs "map" $value) (kindIs "invalid" $value)) }}
{{ $key }} = {{ include "fedrep.tomlValue" $value }}
{{- end }}
{{- end }}
{{- range $key, $value := . }}
{{- if kindIs "map" $value }}

[{{ $key }}]
{{- range $name, $inner := $value }}
{{- if not (kindIs "invalid" $inner) }}
{{ $name }} = {{ include "fedrep.tomlValue" $inner }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "fedrep.tomlValue" -}}
{{- if kindIs "slice" . -}}
[{{- range $index, $item := . }}{{ if $index }}, {{ end }}{{ include "fedrep.tomlValue" $item }}{{ end -}}]
{{- else if kindIs "map" . -}}
{{- $parts := list -}}
{{- range $key, $value := . }}{{ $parts = append $parts (printf "%s = %s" (toJson $key) (include "fedrep.tomlValue" $value)) }}{{ end -}}
{ {{- join ", " $parts -}} }
{{- else if and (kindIs "float64" .) (eq (floor .) .) (lt . 1e15) (gt . -1e15) -}}
{{- /* Helm reads every number as a float; 8550 must not become 8550.0 or 1e+06. */ -}}
{{- printf "%d" (int64 .) -}}
{{- else -}}
{{- toJson . -}}
{{- end -}}
{{- end -}}

{{- define "fedrep.podSecurity" -}}
runAsNonRoot: true
seccompProfile:
  type: RuntimeDefault
{{- if not .Values.arbitraryUids }}
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
{{- end }}
{{- end -}}

{{- define "fedrep.containerSecurity" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop:
    - ALL
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- /* Called with (list $ component-values): what every pod of the chart has in common. */ -}}
{{- define "fedrep.podCommon" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
serviceAccountName: {{ include "fedrep.serviceAccountName" $root }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "fedrep.podSecurity" $root | nindent 2 }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* Called with (list $ "component" component-values): replicas keep away from each other's nodes and zones where possible. */ -}}
{{- define "fedrep.spread" -}}
{{- $values := index . 2 -}}
{{- if $values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml $values.topologySpreadConstraints | nindent 2 }}
{{- else if and (gt (int $values.replicas) 1) (not $values.affinity) }}
topologySpreadConstraints:
  {{- $root := index . 0 }}
  {{- $component := index . 1 }}
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "fedrep.selector" (list $root $component) | nindent 8 }}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* Called with (list secret-name from-cert-manager). cert-manager's file names are turned into ours. */ -}}
{{- define "fedrep.identityVolume" -}}
- name: identity
  secret:
    secretName: {{ index . 0 }}
    defaultMode: 0440
    {{- if index . 1 }}
    items:
      - {key: tls.key, path: key.pem}
      - {key: tls.crt, path: cert.pem}
      - {key: ca.crt, path: root.pem}
    {{- end }}
{{- end -}}

{{- define "fedrep.serverIdentity" -}}
{{- if .Values.server.identity.certManager.enabled -}}
{{ include "fedrep.fullname" . }}-server-identity
{{- else -}}
{{- required "server.identity.existingSecret is empty: name the Secret with key.pem, cert.pem and root.pem of the server, or set server.identity.certManager.enabled" .Values.server.identity.existingSecret -}}
{{- end -}}
{{- end -}}

{{- define "fedrep.dashboardIdentity" -}}
{{- if .Values.dashboard.identity.certManager.enabled -}}
{{ include "fedrep.fullname" . }}-dashboard-identity
{{- else -}}
{{- required "dashboard.identity.existingSecret is empty: name the Secret with key.pem, cert.pem and root.pem of a viewer or admin, or set dashboard.identity.certManager.enabled, or dashboard.enabled=false" .Values.dashboard.identity.existingSecret -}}
{{- end -}}
{{- end -}}

{{- define "fedrep.dashboardTokens" -}}
{{- default (printf "%s-dashboard-tokens" (include "fedrep.fullname" .)) .Values.dashboard.tokens.existingSecret -}}
{{- end -}}

{{- define "fedrep.serverService" -}}
{{ include "fedrep.fullname" . }}-server
{{- end -}}

{{- define "fedrep.serverAddress" -}}
{{ include "fedrep.serverService" . }}.{{ .Release.Namespace }}.svc:{{ .Values.server.service.port }}
{{- end -}}

{{- define "fedrep.serverName" -}}
{{- default (include "fedrep.serverService" .) .Values.server.identity.serverName -}}
{{- end -}}

{{- /* The address that gets the server's alerts, where it is among the values, and the Secret that holds it. */ -}}
{{- define "fedrep.webhook" -}}
{{- (get .Values.server.settings "alerts" | default dict).webhook | default "" -}}
{{- end -}}

{{- define "fedrep.webhookSecret" -}}
{{- if .Values.server.webhook.existingSecret -}}
{{- .Values.server.webhook.existingSecret -}}
{{- else if include "fedrep.webhook" . -}}
{{ include "fedrep.serverService" . }}-webhook
{{- end -}}
{{- end -}}

{{- define "fedrep.dns" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- end -}}

{{- /* Called with (list address default): the port of host:port or of a URL. */ -}}
{{- define "fedrep.portOf" -}}
{{- $address := index . 0 -}}
{{- $found := regexFind ":[0-9]+(/|$)" $address -}}
{{- if $found -}}{{- regexFind "[0-9]+" $found -}}
{{- else if hasPrefix "https://" $address -}}443
{{- else if hasPrefix "http://" $address -}}80
{{- else -}}{{- index . 1 -}}
{{- end -}}
{{- end -}}

{{- /* The families of every Service's addresses; what the cluster gives when neither is set. */ -}}
{{- define "fedrep.families" -}}
{{- with .Values.services.ipFamilyPolicy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- with .Values.services.ipFamilies }}
ipFamilies:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "fedrep.ca" -}}
{{ include "fedrep.fullname" . }}-ca
{{- end -}}

{{- /* host:port of the authority's mTLS port, empty where none is known. */ -}}
{{- define "fedrep.authority" -}}
{{- if .Values.server.revocations.authority -}}
{{- .Values.server.revocations.authority -}}
{{- else if .Values.ca.enabled -}}
{{ include "fedrep.ca" . }}.{{ .Release.Namespace }}.svc:8552
{{- end -}}
{{- end -}}

{{- define "fedrep.siloIdentity" -}}
{{- if .Values.silo.identity.certManager.enabled -}}
{{ include "fedrep.fullname" . }}-silo-identity
{{- else -}}
{{- .Values.silo.identity.existingSecret -}}
{{- end -}}
{{- end -}}

{{- /* The claims that a silo has by itself: under a StatefulSet, under a Job, and the one that holds the state of this release's. */ -}}
{{- define "fedrep.siloSetClaim" -}}
state-{{ include "fedrep.fullname" . }}-silo-0
{{- end -}}

{{- define "fedrep.siloJobClaim" -}}
{{ include "fedrep.fullname" . }}-silo-state
{{- end -}}

{{- define "fedrep.siloClaim" -}}
{{- if .Values.silo.state.existingClaim -}}
{{- .Values.silo.state.existingClaim -}}
{{- else if eq .Values.silo.kind "Job" -}}
{{- include "fedrep.siloJobClaim" . -}}
{{- else -}}
{{- include "fedrep.siloSetClaim" . -}}
{{- end -}}
{{- end -}}

{{- /* Whether the StatefulSet's own template makes the claim; anything but empty is yes. */ -}}
{{- define "fedrep.siloClaimFromTemplate" -}}
{{- if and (eq .Values.silo.kind "StatefulSet") (eq (include "fedrep.siloClaim" .) (include "fedrep.siloSetClaim" .)) -}}yes{{- end -}}
{{- end -}}

{{- /* Called with (list $ secret...): changes when Secrets do that a pod reads only at its start. Annotations are read by more
       people than Secrets, so it follows from the version the cluster gave a Secret and not from what is in it, which could be
       guessed against a hash. Without a cluster to look at (helm template) it is always the same, and whoever changes a Secret
       restarts the pods. */ -}}
{{- define "fedrep.secretsChecksum" -}}
{{- $root := index . 0 -}}
{{- $versions := list -}}
{{- range rest . -}}
{{- if . -}}
{{- $found := (lookup "v1" "Secret" $root.Release.Namespace .).metadata | default dict -}}
{{- $versions = append $versions (list . (get $found "uid") (get $found "resourceVersion")) -}}
{{- end -}}
{{- end -}}
{{- toJson $versions | sha256sum -}}
{{- end -}}

{{- /* Called with (list text secret): the same for a Secret that the chart makes of a text among the values, which is there only
       after the pods are rendered: 16 bits of what scrypt makes of it. A guess costs as much, and of those that fit nearly all
       are wrong. */ -}}
{{- define "fedrep.textChecksum" -}}
{{- derivePassword 1 "long" (index . 0) (index . 1) "checksum/secrets" | sha256sum | trunc 4 | quote -}}
{{- end -}}

{{- /* Rules over several values, each with a sentence. Called once, from the service account. */ -}}
{{- define "fedrep.validate" -}}
{{- $server := .Values.server -}}
{{- if $server.enabled -}}
{{- if and (eq $server.database.kind "sqlite") (gt (int $server.replicas) 1) -}}
{{- fail "server.replicas is more than 1 with SQLite, which lives on one pod's volume: set server.database.kind=postgresql and server.database.existingSecret, or server.replicas=1" -}}
{{- end -}}
{{- if and (eq $server.database.kind "postgresql") (not $server.database.existingSecret) -}}
{{- fail "server.database.existingSecret is empty: name the Secret that holds the PostgreSQL URL under the key given by server.database.secretKey" -}}
{{- end -}}
{{- if and (eq $server.database.kind "sqlite") $server.database.existingSecret -}}
{{- fail "server.database.existingSecret is set and server.database.kind is sqlite, which does not read it: set server.database.kind=postgresql, or leave existingSecret empty" -}}
{{- end -}}
{{- if and $server.webhook.existingSecret (include "fedrep.webhook" .) -}}
{{- fail "server.webhook.existingSecret and server.settings.alerts.webhook both say where alerts go: keep the Secret and take the setting out, or the other way round" -}}
{{- end -}}
{{- if and $server.ingress.enabled (not $server.ingress.host) -}}
{{- fail "server.ingress.host is empty: give the host name that silos dial; it must be in the server's certificate" -}}
{{- end -}}
{{- if and $server.identity.certManager.enabled (not .Values.federation) -}}
{{- fail "federation is empty: cert-manager needs the federation's name for the identity in the certificate" -}}
{{- end -}}
{{- if le (int $server.terminationGracePeriodSeconds) (int (default 20 (get $server.settings "grace_seconds"))) -}}
{{- fail "server.terminationGracePeriodSeconds must be larger than server.settings.grace_seconds, or pods are killed in the middle of the round they try to end" -}}
{{- end -}}
{{- end -}}
{{- if and $server.enabled $server.gateway.enabled (not $server.gateway.parentRefs) -}}
{{- fail "server.gateway.parentRefs is empty: name the Gateway whose TLS listener, with mode Passthrough, silos dial" -}}
{{- end -}}
{{- if and $server.enabled $server.gateway.enabled (not $server.gateway.hostnames) -}}
{{- fail "server.gateway.hostnames is empty: give the host names that silos dial; they must be in the server's certificate" -}}
{{- end -}}
{{- if and $server.enabled $server.backup.enabled (not $server.backup.existingClaim) (not (contains "://" $server.backup.target)) -}}
{{- fail "server.backup has no place to write to: set server.backup.existingClaim, or server.backup.target to an address such as s3://bucket/fedrep/" -}}
{{- end -}}
{{- if and $server.enabled $server.restore.from (ne (int $server.replicas) 0) -}}
{{- fail "server.restore.from is set while servers run: a backup is restored into an empty database that nobody uses. Set server.replicas=0 as well, and both back when the Job has ended" -}}
{{- end -}}
{{- if .Values.ca.enabled -}}
{{- if not .Values.federation -}}{{- fail "federation is empty: the certificate authority is made for one federation" -}}{{- end -}}
{{- if not .Values.ca.passphrase.existingSecret -}}
{{- fail "ca.passphrase.existingSecret is empty: name the Secret that holds the passphrase of the authority's key" -}}
{{- end -}}
{{- if not .Values.ca.address -}}{{- fail "ca.address is empty: give the host name under which silos reach the authority" -}}{{- end -}}
{{- if not .Values.ca.server -}}{{- fail "ca.server is empty: give the host:port of the federation server that silos dial" -}}{{- end -}}
{{- if regexMatch "^[^:]*:[^:]*$" .Values.ca.address -}}
{{- fail "ca.address has a port: give the host name alone; silos find the authority on its ports 8551 and 8552" -}}
{{- end -}}
{{- if not (regexMatch "^.+:[0-9]+$" .Values.ca.server) -}}
{{- fail "ca.server has no port: give the host:port of the federation server that silos dial, such as federation.example.org:8550" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.dashboard.enabled (not $server.enabled) (not (get .Values.dashboard.settings "server")) -}}
{{- fail "dashboard.settings.server is empty and this release runs no server: give the host:port of the server the dashboard shows" -}}
{{- end -}}
{{- if and .Values.dashboard.enabled $server.enabled (get .Values.dashboard.settings "server") -}}
{{- fail "dashboard.settings.server is set and this release runs a server, the only one that fits the network policy and server name of its dashboard: leave it empty to show this server, or install the dashboard of another one as a release of its own with server.enabled=false" -}}
{{- end -}}
{{- if and .Values.dashboard.enabled .Values.dashboard.ingress.enabled (not .Values.dashboard.ingress.host) -}}
{{- fail "dashboard.ingress.host is empty: give the host name of the pages" -}}
{{- end -}}
{{- if .Values.silo.enabled -}}
{{- if not .Values.silo.run -}}{{- fail "silo.run is empty: name the run this silo takes part in" -}}{{- end -}}
{{- if and (eq .Values.silo.kind "Job") (eq .Values.silo.run "*") -}}{{- fail "silo.kind=Job is for one run: name it in silo.run, or set silo.kind=StatefulSet" -}}{{- end -}}
{{- if and .Values.silo.identity.certManager.enabled (not .Values.federation) -}}
{{- fail "federation is empty: cert-manager needs the federation's name for the identity in the certificate" -}}
{{- end -}}
{{- if not (include "fedrep.siloIdentity" .) -}}
{{- fail "silo.identity.existingSecret is empty: name the Secret with key.pem, cert.pem and root.pem of this silo, or set silo.identity.certManager.enabled" -}}
{{- end -}}
{{- if and (not $server.enabled) (not .Values.silo.server) -}}
{{- fail "silo.server is empty and this release runs no server: give the host:port of the federation server" -}}
{{- end -}}
{{- if not .Values.silo.state.existingClaim -}}
{{- $kinds := dict "Job" (include "fedrep.siloJobClaim" .) "StatefulSet" (include "fedrep.siloSetClaim" .) -}}
{{- $left := get $kinds (ternary "StatefulSet" "Job" (eq .Values.silo.kind "Job")) -}}
{{- if lookup "v1" "PersistentVolumeClaim" .Release.Namespace $left -}}
{{- fail (printf "silo.kind=%s would begin with an empty ledger: the silo's state, and what its data set has spent, is on the claim %s of the other kind. Set silo.state.existingClaim=%s to go on with it, or silo.state.existingClaim=%s to leave it aside" .Values.silo.kind $left $left (include "fedrep.siloClaim" .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
