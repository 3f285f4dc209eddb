{{- define "cache.selector" -}}
app.kubernetes.io/name: cache
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
{{- define "cache.labels" -}}
{{ include "cache.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: cache-{{ .Chart.Version | replace "+" "_" }}
{{- end -}}
