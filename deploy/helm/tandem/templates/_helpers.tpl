{{- define "tandem.name" -}}
{{- if contains "tandem" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-tandem" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "tandem.selector" -}}
app.kubernetes.io/name: tandem
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tandem.labels" -}}
{{ include "tandem.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "tandem.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (ternary "cuda" "cpu" (gt (int .Values.gpus) 0)) }}
{{- end }}
{{- end }}

{{- /* The claim that is mounted at /models; empty: none. */}}
{{- define "tandem.claim" -}}
{{- if .Values.models.existingClaim }}{{ .Values.models.existingClaim }}
{{- else if .Values.models.create }}{{ include "tandem.name" . }}-models
{{- end }}
{{- end }}

{{- /* The deployment file with its server section. */}}
{{- define "tandem.config" -}}
{{ .Values.config | trimSuffix "\n" }}
server {
  listen: "[::]:50051"
  http: "[::]:9400"
  grace_seconds: {{ .Values.graceSeconds }}
  max_connection_age_seconds: {{ .Values.maxConnectionAgeSeconds }}
{{- if .Values.tls.secretName }}
  tls {
    certificate: "/etc/tandem-tls/tls.crt"
    key: "/etc/tandem-tls/tls.key"
    {{- if .Values.tls.clientCertificates }}
    client_ca: "/etc/tandem-tls/ca.crt"
    {{- end }}
  }
{{- else }}
  insecure: true
{{- end }}
{{- if .Values.openai.enabled }}
  openai: "[::]:8000"
{{- end }}
{{- with .Values.otlp.endpoint }}
  otlp { endpoint: {{ . | quote }} sample_ratio: {{ $.Values.otlp.sampleRatio }} }
{{- end }}
{{- if .Values.tokens.secretName }}
  bearer_token_file: "/etc/tandem-tokens/tokens"
{{- end }}
{{- with .Values.server }}
{{ . | trimSuffix "\n" | indent 2 }}
{{- end }}
}
{{- end }}

{{- /* Prometheus labels a pod's series with its namespace and name. */}}
{{- define "tandem.waiting" -}}
{{- if .Values.keda.query }}{{ .Values.keda.query }}
{{- else }}sum(tandem_num_requests_waiting{namespace="{{ .Release.Namespace }}",pod=~"{{ include "tandem.name" . }}-[0-9a-z]+-[0-9a-z]+"})
{{- end }}
{{- end }}

{{- define "tandem.ready" -}}
{{- if .Values.tls.secretName -}}
httpGet: {path: /readyz, port: http}
{{- else -}}
grpc: {port: 50051}
{{- end }}
{{- end }}
