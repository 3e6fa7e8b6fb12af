{{/* What all objects are called: the release, `dranode` where it is called so. */}}
{{- define "dranode.name" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "dranode.labels" -}}
app.kubernetes.io/part-of: dranode
{{- end -}}

{{- define "dranode.selector" -}}
app.kubernetes.io/name: {{ include "dranode.name" . | quote }}
{{- end -}}

{{/* The names under which the drivers publish: dra.cpu for cpu, unless driverNames has another one. */}}
{{- define "dranode.published" -}}
{{- $names := list "dra.cpu" "dra.gpu" "dra.memory" }}
{{- range .Values.drivers }}
{{- $names = append $names (get ($.Values.driverNames | default dict) . | default (printf "dra.%s" .)) }}
{{- end }}
{{- range $driver, $_ := .Values.driverNames }}
{{- if not (has $driver $.Values.drivers) }}
{{- fail (printf "driverNames.%s: drivers does not have this driver" $driver) }}
{{- end }}
{{- end }}
{{- range $index, $name := uniq $names }}{{ if $index }}, {{ else }}[{{ end }}{{ quote $name }}{{ end }}]
{{- end -}}

{{- define "dranode.image" -}}
{{- $tag := default .Chart.AppVersion .Values.image.tag }}
{{- if not (contains "@" .Values.image.repository) }}
{{- printf "%s%s%s" .Values.image.repository (hasPrefix "sha256:" $tag | ternary "@" ":") $tag }}
{{- else if .Values.image.tag }}
{{- fail "image.tag: image.repository names a digest already; set one of them" }}
{{- else }}
{{- .Values.image.repository }}
{{- end }}
{{- end -}}

{{/* The name of the port that has the metrics. */}}
{{- define "dranode.metricsPort" -}}
{{- if eq (int .Values.metrics.port) (int .Values.probes.port) }}http{{ else }}metrics{{ end -}}
{{- end -}}

{{/* What makes an object part of the hook before an uninstall; the argument is its turn. */}}
{{- define "dranode.drainHook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/* As the driver's own container. */}}
{{- define "dranode.drainSecurity" -}}
runAsUser: 0
runAsGroup: 0
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- with .Values.seLinuxType }}
seLinuxOptions:
  type: {{ . | quote }}
{{- end }}
{{- end -}}
