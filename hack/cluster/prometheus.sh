#!/bin/bash
# prometheus.sh [NAME:PORT...]: a Prometheus at prometheus.monitoring.svc:9090 that scrapes, every 2 s, each pod annotated
#   prometheus.io/scrape: "true"     and prometheus.io/port: "8000", optionally prometheus.io/path
# with the labels of a usual real cluster: namespace, pod, node, container-independent `instance` (pod IP:port) and every pod label.
# A NAME:PORT (a headless Service, vllm-metrics.NS.svc.cluster.local:8000) adds a second job, `dns`, which finds the same pods by
# address alone, so without pod and namespace: what some real clusters have. Idempotent; ends when Prometheus is ready.
. "$(dirname "$0")/lib.sh"
export KUBECONFIG=${KUBECONFIG:-$KUBECONFIG_ADMIN}
K=$BIN/kubectl
[ -x "$K" ] || K=kubectl
[ -x /usr/bin/prometheus ] || die "missing /usr/bin/prometheus: Debian's package, which hack/cluster/build.sh installs"

DNS_JOB=
if [ $# -gt 0 ]; then
  DNS_JOB="- job_name: dns"$'\n'"  dns_sd_configs:"
  for target; do
    case $target in *:[0-9]*) ;; *) die "'$target' is not NAME:PORT" ;; esac
    DNS_JOB+=$'\n'"  - {names: [\"${target%:*}\"], type: A, port: ${target##*:}, refresh_interval: 2s}"
  done
fi

CONFIG=$(mktemp -d); trap 'rm -rf "$CONFIG"' EXIT
sed -e "/^# @DNS@/{
r /dev/stdin
d
}" "$HERE/prometheus/prometheus.yml" > "$CONFIG/prometheus.yml" <<< "$DNS_JOB"
cp "$HERE/prometheus/discover.py" "$CONFIG/"
$K get namespace monitoring >/dev/null 2>&1 || $K create namespace monitoring >/dev/null
$K -n monitoring create configmap prometheus --from-file="$CONFIG" --dry-run=client -o yaml | $K apply -f - >/dev/null
# A changed configuration is a changed template, so that it takes effect.
sed "s/@CONFIG_HASH@/$(cat "$CONFIG"/* | sha256sum | cut -c1-16)/" "$HERE/prometheus/manifest.yaml" | $K apply -f - >/dev/null
$K -n monitoring rollout status deployment/prometheus --timeout=120s
