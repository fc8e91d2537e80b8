{{- /* The silo's pod, the same under a StatefulSet and a Job. */ -}}
{{- define "fedrep.siloPod" -}}
{{- $silo := .Values.silo -}}
metadata:
  labels:
    {{- include "fedrep.labels" (list . "silo") | nindent 4 }}
    {{- with $silo.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/config: {{ include (print $.Template.BasePath "/silo/configmap.yaml") . | sha256sum }}
    {{- with $silo.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "fedrep.podCommon" (list . $silo) | nindent 2 }}
  # Time for the round that others count on, and to leave politely.
  terminationGracePeriodSeconds: {{ max 60 (add 30 (ceil (get $silo.settings "grace_seconds" | default 30))) }}
  {{- if eq $silo.kind "Job" }}
  restartPolicy: Never
  {{- end }}
  {{- with $silo.gpu.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  containers:
    - name: silo
      image: {{ include "fedrep.image" (list . "client") }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command: ["fedrep"]
      args: ["client", "--config", "/etc/fedrep/config/client.toml"]
      {{- with $silo.extraEnv }}
      env:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      # No probe: a silo listens on no port, and its process ends by itself when it cannot go on.
      securityContext:
        {{- include "fedrep.containerSecurity" . | nindent 8 }}
      {{- $resources := deepCopy $silo.resources }}
      {{- if $silo.gpu.count }}
      {{- $resources = merge $resources (dict "limits" (dict $silo.gpu.resource $silo.gpu.count) "requests" (dict $silo.gpu.resource $silo.gpu.count)) }}
      {{- end }}
      resources:
        {{- toYaml $resources | nindent 8 }}
      volumeMounts:
        - {name: config, mountPath: /etc/fedrep/config, readOnly: true}
        - {name: identity, mountPath: /etc/fedrep/identity, readOnly: true}
        - {name: state, mountPath: /var/lib/fedrep}
        - {name: tmp, mountPath: /tmp}
        {{- if $silo.dataVolume }}
        - {name: training-data, mountPath: /data, readOnly: true}
        {{- end }}
        {{- with $silo.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    {{- if not (include "fedrep.siloClaimFromTemplate" .) }}
    - name: state
      persistentVolumeClaim:
        claimName: {{ include "fedrep.siloClaim" . }}
    {{- end }}
    - name: config
      configMap:
        name: {{ include "fedrep.fullname" . }}-silo
    {{- include "fedrep.identityVolume" (list (include "fedrep.siloIdentity" .) $silo.identity.certManager.enabled) | nindent 4 }}
    - name: tmp
      emptyDir: {}
    {{- with $silo.dataVolume }}
    - name: training-data
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $silo.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
