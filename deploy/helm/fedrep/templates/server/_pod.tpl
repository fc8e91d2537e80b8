{{- /* The server's pod, the same under a StatefulSet and a Deployment. */ -}}
{{- define "fedrep.serverPod" -}}
{{- $server := .Values.server -}}
metadata:
  labels:
    {{- include "fedrep.labels" (list . "server") | nindent 4 }}
    {{- with $server.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/config: {{ include (print $.Template.BasePath "/server/configmap.yaml") . | sha256sum }}
    {{- with compact (list $server.database.existingSecret $server.webhook.existingSecret) }}
    checksum/secrets: {{ include "fedrep.secretsChecksum" (prepend . $) }}
    {{- end }}
    {{- with include "fedrep.webhook" . }}
    checksum/webhook: {{ include "fedrep.textChecksum" (list . (include "fedrep.webhookSecret" $)) }}
    {{- end }}
    {{- with $server.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "fedrep.podCommon" (list . $server) | nindent 2 }}
  terminationGracePeriodSeconds: {{ $server.terminationGracePeriodSeconds }}
  {{- include "fedrep.spread" (list . "server" $server) | nindent 2 }}
  containers:
    - name: server
      image: {{ include "fedrep.image" (list . "server") }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command: ["fedrep"]
      args: ["server", "--config", "/etc/fedrep/config/server.toml"]
      {{- if or (eq $server.database.kind "postgresql") (include "fedrep.webhookSecret" .) $server.extraEnv }}
      env:
        {{- if eq $server.database.kind "postgresql" }}
        # Where standbys find this pod when it leads.
        - name: POD_IP
          valueFrom:
            fieldRef:
              fieldPath: status.podIP
        - name: FEDREP_SERVER__ADVERTISE
          value: "[$(POD_IP)]:8550"
        - name: FEDREP_SERVER__DATABASE
          valueFrom:
            secretKeyRef:
              name: {{ $server.database.existingSecret }}
              key: {{ $server.database.secretKey }}
        {{- end }}
        {{- with include "fedrep.webhookSecret" . }}
        - name: FEDREP_SERVER__ALERTS__WEBHOOK
          valueFrom:
            secretKeyRef:
              name: {{ . }}
              key: {{ $server.webhook.secretKey }}
        {{- end }}
        {{- with $server.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      ports:
        - {name: grpc, containerPort: 8550}
        - {name: health, containerPort: 8553}
        - {name: metrics, containerPort: 8554}
      # Ready: it leads, or it stands by and passes calls on to the leader.
      startupProbe:
        grpc: {port: 8553, service: live}
        periodSeconds: 2
        failureThreshold: 90
      livenessProbe:
        grpc: {port: 8553, service: live}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 3
      readinessProbe:
        grpc: {port: 8553, service: ""}
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 2
      securityContext:
        {{- include "fedrep.containerSecurity" . | nindent 8 }}
      resources:
        {{- toYaml $server.resources | nindent 8 }}
      volumeMounts:
        - {name: config, mountPath: /etc/fedrep/config, readOnly: true}
        - {name: identity, mountPath: /etc/fedrep/identity, readOnly: true}
        - {name: data, mountPath: /var/lib/fedrep}
        - {name: tmp, mountPath: /tmp}
        {{- if $server.revocations.existingConfigMap }}
        - {name: revocations, mountPath: /etc/fedrep/revocations, readOnly: true}
        {{- end }}
        {{- with $server.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ include "fedrep.serverService" . }}
    {{- include "fedrep.identityVolume" (list (include "fedrep.serverIdentity" .) $server.identity.certManager.enabled) | nindent 4 }}
    - name: tmp
      emptyDir:
        sizeLimit: 1Gi
    {{- if eq $server.database.kind "postgresql" }}
    - name: data
      emptyDir:
        sizeLimit: 1Gi
    {{- end }}
    {{- if $server.revocations.existingConfigMap }}
    - name: revocations
      configMap:
        name: {{ $server.revocations.existingConfigMap }}
    {{- end }}
    {{- with $server.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
