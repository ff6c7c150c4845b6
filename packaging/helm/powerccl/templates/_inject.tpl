{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{/* What an injected pod gets: parts of a pod's manifest. docs/guides/kubernetes.md shows the same to write by hand. */}}
{{- define "powerccl.programVolume" -}}
name: powerccl
emptyDir:
  sizeLimit: 256Mi
{{- end }}

{{- define "powerccl.runsVolume" -}}
name: powerccl-runs
{{ toYaml .Values.inject.runsVolume }}
{{- end }}

{{- define "powerccl.leasesVolume" -}}
name: powerccl-leases
hostPath:
  path: {{ .Values.daemon.hostPath }}
  # So that the pod starts on a node without a daemon, too.
  type: DirectoryOrCreate
{{- end }}

{{- define "powerccl.mounts" -}}
volumeMounts:
  - name: powerccl
    mountPath: /opt/powerccl
    readOnly: true
  - name: powerccl-runs
    mountPath: {{ .Values.inject.runsPath }}
{{- end }}

{{/* The folder, not the socket in it: a daemon that is started again makes a new socket. */}}
{{- define "powerccl.leasesMount" -}}
name: powerccl-leases
mountPath: /run/powerccl
readOnly: true
{{- end }}

{{- define "powerccl.podVariables" -}}
env:
  - name: POD_NAME
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
  - name: POD_NAMESPACE
    valueFrom:
      fieldRef:
        fieldPath: metadata.namespace
  - name: POD_UID
    valueFrom:
      fieldRef:
        fieldPath: metadata.uid
{{- end }}

{{/* Copies the program. Its rights are those that Pod Security's level `restricted` asks for. */}}
{{- define "powerccl.initContainer" -}}
name: powerccl
image: {{ include "powerccl.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command: [cp, -r, /opt/powerccl-inject/., /opt/powerccl/]
securityContext:
  runAsUser: 65532
  runAsGroup: 65532
  runAsNonRoot: true
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities:
    drop: [ALL]
  seccompProfile:
    type: RuntimeDefault
resources:
  {{- toYaml .Values.inject.resources | nindent 2 }}
volumeMounts:
  - name: powerccl
    mountPath: /opt/powerccl
{{- end }}
