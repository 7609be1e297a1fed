{{- define "trimtab.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "trimtab.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "trimtab.name" .) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "trimtab.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* Cluster-scoped names carry the namespace: two releases of one name must not share a ClusterRole. */ -}}
{{- define "trimtab.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "trimtab.fullname" .) }}
{{- end }}

{{- define "trimtab.selectorLabels" -}}
app.kubernetes.io/name: {{ include "trimtab.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "trimtab.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{ include "trimtab.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "trimtab.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "trimtab.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "trimtab.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- /* Where the operator looks: arguments of every trimtab-operator command. */ -}}
{{- define "trimtab.scopeArgs" -}}
{{- range .Values.watchNamespaces }}
- --namespace={{ . }}
{{- else }}
- --all-namespaces
{{- end }}
{{- end }}

{{- /* Pod settings that the operator, the release Job and the test share. */ -}}
{{- define "trimtab.podCommon" -}}
serviceAccountName: {{ include "trimtab.serviceAccountName" . }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
enableServiceLinks: false
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "trimtab.containerCommon" -}}
image: {{ include "trimtab.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
env:
  # names the holder of the Lease: a container started again in its pod need not wait for its own lease to expire
  - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  # the image has no passwd entry for an arbitrary uid, and Kopf asks for the user's name when it starts
  - {name: USER, value: trimtab}
  - {name: HOME, value: /tmp}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
resources:
  {{- toYaml .Values.resources | nindent 2 }}
{{- end }}

{{- /* Rules in a namespace whose tuners are served: the least that rbac.mode needs. */ -}}
{{- define "trimtab.tunerRules" -}}
- apiGroups: [trimtab.dev]
  resources: [vllmtuners]
  verbs: [get, list, watch, patch] # patch: the finalizer; list also by helm test
- apiGroups: [trimtab.dev]
  resources: [tuningtrials]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [trimtab.dev]
  resources: [vllmtuners/status, tuningtrials/status]
  verbs: [update]
- apiGroups: [trimtab.dev]
  resources: [vllmtuners/finalizers]
  verbs: [update] # owner references of trials, where OwnerReferencesPermissionEnforcement is on
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list{{ if eq .Values.rbac.mode "Apply" }}, patch{{ end }}]
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list]
- apiGroups: [""]
  resources: [pods]
  verbs: [list{{ if eq .Values.rbac.mode "Apply" }}, patch{{ end }}]{{ if eq .Values.rbac.mode "Apply" }} # patch: an annotation, so that a new token policy is there in a second
{{- end }}
{{- if or (eq .Values.rbac.mode "Apply") .Values.rbac.writeOutput }}
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create, patch] # the middleware and its policy, and spec.output; their names come from the tuners
{{- end }}
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get] # the label trimtab.dev/freeze
{{- if eq .Values.rbac.mode "Apply" }}
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list] # a trial takes a pod only where they allow it
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [list] # one that scales on running requests bounds maxNumSeqs
- apiGroups: [autoscaling.k8s.io]
  resources: [verticalpodautoscalers]
  verbs: [list] # one that resizes pods keeps trials away
{{- end }}
- apiGroups: [serving.kserve.io]
  resources: [inferenceservices, llminferenceservices]
  verbs: [get] # a target that KServe owns: the recommendation is a patch of that object
- apiGroups: [production-stack.vllm.ai]
  resources: [vllmruntimes]
  verbs: [get] # likewise
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get] # last lines of a canary that crashed
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end }}

{{- define "trimtab.subjects" }}
subjects:
- kind: ServiceAccount
  name: {{ include "trimtab.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}

{{- /* "true" when this upgrade takes the right to patch Deployments away: a trial in flight must be rolled back first. */ -}}
{{- define "trimtab.takesApplyAway" -}}
{{- $found := list (lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" (include "trimtab.clusterName" .)) }}
{{- range .Values.watchNamespaces }}
{{- $found = append $found (lookup "rbac.authorization.k8s.io/v1" "Role" . (include "trimtab.clusterName" $)) }}
{{- end }}
{{- $had := false }}
{{- range $role := $found }}
{{- range default list (get (default dict $role) "rules") }}
{{- if and (has "deployments" (default list .resources)) (has "patch" (default list .verbs)) }}{{ $had = true }}{{ end }}
{{- end }}
{{- end }}
{{- if and $had (eq .Values.rbac.mode "Recommend") }}true{{ end }}
{{- end }}
