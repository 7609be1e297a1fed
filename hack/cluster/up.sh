#!/bin/bash
# up.sh: start a single-node Kubernetes inside its own pid, mount, network, ipc and uts namespaces and wait until it can run pods.
# Does nothing when it already runs. Pod and Service addresses are routed from the host; everything it starts ends with down.sh.
# Use it with the two variables that it prints (KUBECONFIG, PATH). Run build.sh first.
. "$(dirname "$0")/lib.sh"
need_root
need unshare nsenter ip iptables conntrack containerd ctr runc openssl flock pgrep
exclusive node

for c in "${GO_BINARIES[@]}" kubectl; do [ -x "$BIN/$c" ] || die "$BIN/$c is missing: run hack/cluster/build.sh first"; done
[ -f "$IMAGES/pause-1.tar" ] || die "$IMAGES/pause-1.tar is missing: run hack/cluster/build.sh first"
[ -d /sys/fs/cgroup/memory ] || die "no cgroup v1 controllers under /sys/fs/cgroup: this recipe needs v1 (v2 was never tried)"
unshare --pid --mount --net --ipc --uts --fork true 2>/dev/null || die "this machine does not allow new namespaces (unshare failed)"

K="$BIN/kubectl --kubeconfig $KUBECONFIG_ADMIN"
usage() { echo "export KUBECONFIG=$KUBECONFIG_ADMIN PATH=$BIN:\$PATH"; }
import_all() {
  local i
  for i in "$IMAGES"/*.tar; do [ "${i##*/}" = pause-1.tar ] || import_image "$i"; done  # pause: node.sh has it
}

if [ -n "$(node_pid)" ] && [ -f "$NODE/ready" ]; then
  wait_for 60 "the API server of the running cluster" $K get --raw /readyz
  import_all
  echo "already up:"; usage
  exit 0
fi
# Whatever is left of an up.sh that did not finish goes first.
export TRIMTAB_NODE_LOCKED=1
"$HERE/down.sh" 9>&-
if [ -n "$(any_node)" ] || ip link show $LINK >/dev/null 2>&1; then die "a cluster with another TRIMTAB_CACHE runs on this machine (link $LINK)"; fi

mkdir -p "$NODE/log"
trap '[ $? = 0 ] || "$HERE/down.sh" --keep-logs >&2' EXIT  # a failed start leaves only its logs behind
# The argument TRIMTAB_NODE=... is how the other scripts recognize the node's processes.
setsid unshare --pid --mount --net --ipc --uts --fork --mount-proc --kill-child \
  bash "$HERE/node.sh" "TRIMTAB_NODE=$NODE" >"$NODE/log/node.log" 2>&1 </dev/null 9>&- &
disown
running() { [ -n "$(node_pid)" ]; }
wait_for 10 "the namespaces" running
INIT=$(node_pid)

# The only things the host sees: one veth, three routes. They vanish with the node's network namespace.
ip link add $LINK type veth peer name eth0 netns "$INIT"
ip addr add $HOST_IP/$LINK_BITS dev $LINK
ip link set $LINK up
ip route add $POD_CIDR via $NODE_IP
ip route add $SERVICE_CIDR via $NODE_IP

# Images go in while the control plane starts: the import is mostly disk, half a gigabyte of it.
( wait_for 60 "containerd" node_ctr version; import_all ) 9>&- & IMPORT=$!

started() { [ -f "$NODE/started" ] || ! running; }
wait_for 180 "the API server and the node's set-up" started
running || die "the node ended while starting: see $NODE/log/node.log"
wait_for 120 "node readiness" $K wait --for=condition=Ready node/node-1 --timeout=1s
wait_for 60 "the default service account (pods are refused before it exists)" $K get serviceaccount default
wait_for 60 "DNS" "$HERE/enter.sh" bash -c "exec 3<>/dev/tcp/$NODE_IP/53"
wait $IMPORT || die "an image could not be imported from $IMAGES"
touch "$NODE/ready"
echo "up in $SECONDS s:"; usage
