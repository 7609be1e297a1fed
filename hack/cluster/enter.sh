#!/bin/bash
# enter.sh COMMAND...: run a command inside the node (its pids, mounts, network). For instance
#   enter.sh iptables-save
#   enter.sh ctr -a CACHE/cluster/node/containerd.sock -n k8s.io images ls
#   enter.sh pkill -9 kube-apiserver     a fault to test against: it is back within seconds, pods keep running
. "$(dirname "$0")/lib.sh"
need_root
PID=$(node_pid)
[ -n "$PID" ] || die "no cluster runs here: run up.sh"
exec nsenter -t "$PID" -p -m -n -i -u -- "$@"
