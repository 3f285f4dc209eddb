{{- define "postgres.selector" -}}
app.kubernetes.io/name: postgres
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
{{- define "postgres.labels" -}}
{{ include "postgres.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: postgres-{{ .Chart.Version | replace "+" "_" }}
{{- end -}}
