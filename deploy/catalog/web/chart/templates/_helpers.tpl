{{- define "web.selector" -}}
app.kubernetes.io/name: web
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
{{- define "web.labels" -}}
{{ include "web.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: web-{{ .Chart.Version | replace "+" "_" }}
{{- end -}}
