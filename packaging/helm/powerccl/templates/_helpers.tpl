{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{- define "powerccl.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "powerccl.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "powerccl.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{- define "powerccl.selectorLabels" -}}
app.kubernetes.io/name: {{ include "powerccl.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "powerccl.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{ include "powerccl.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "powerccl.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "powerccl.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "powerccl.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{/* The folder of the state file in the daemon's container. */}}
{{- define "powerccl.statePath" -}}
{{ ternary "/var/lib/powerccl" "/run/powerccl" (ne .Values.daemon.stateHostPath "") }}
{{- end }}

{{/* Version of admissionregistration.k8s.io for MutatingAdmissionPolicy; empty: the cluster has none. */}}
{{- define "powerccl.mutatingVersion" -}}
{{- $served := .Values.inject.apiVersion }}
{{- if and (not $served) (semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version) }}
{{- $served = "v1" }}
{{- end }}
{{- range list "v1beta1" "v1alpha1" }}
{{- $kind := printf "admissionregistration.k8s.io/%s/MutatingAdmissionPolicy" . }}
{{- if and (not $served) ($.Capabilities.APIVersions.Has $kind) }}
{{- $served = . }}
{{- end }}
{{- end }}
{{- $served }}
{{- end }}

{{/* YAML as an expression of CEL. dyn: its lists and maps take values of one type. */}}
{{- define "powerccl.cel" -}}
{{- if kindIs "map" . -}}
dyn({ {{- $first := true }}{{ range $key, $value := . }}{{ if not $first }}, {{ end }}{{ $first = false -}}
{{ toJson $key }}: {{ include "powerccl.cel" $value }}{{ end -}} })
{{- else if kindIs "slice" . -}}
dyn([ {{- range $index, $value := . }}{{ if $index }}, {{ end }}{{ include "powerccl.cel" $value }}{{ end -}} ])
{{- else -}}
dyn({{ toJson . }})
{{- end -}}
{{- end }}
