# Shared by the scripts here and in ../image: where things live, the node's addresses, small helpers. Sourced, not run.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# Everything is under one directory outside the tree: what costs minutes survives a fresh clone.
CLUSTER=${TRIMTAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/trimtab}/cluster
case $CLUSTER in /*) ;; *) CLUSTER=$PWD/$CLUSTER ;; esac
STORE=$CLUSTER/store    # built things, each named by a hash of what it was made from: never stale, kept for two weeks
BIN=$CLUSTER/bin        # links into the store: put this on PATH
IMAGES=$CLUSTER/images  # every *.tar here is imported by up.sh
NODE=$CLUSTER/node      # one cluster's life: removed by down.sh
KUBECONFIG_ADMIN=$CLUSTER/kubeconfig

# One cluster per machine. The host gets one veth and three routes, the node's own namespace gets the rest.
LINK=trimtab0
HOST_IP=10.200.0.1 NODE_IP=10.200.0.2 LINK_BITS=24
POD_CIDR=10.244.0.0/24
SERVICE_CIDR=10.96.0.0/16 DNS_IP=10.96.0.10
CGROUP=trimtab-cluster                              # parent of every pod's cgroup
HIDDEN=(/run /var/lib/cni /var/lib/kubelet /var/log)  # fixed host paths that the node sees as directories of its own
GO_BINARIES=(kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy etcd coredns)

die() { echo "${0##*/}: $*" >&2; exit 1; }
# Lines with the time since the script began, so that a log shows what was slow.
say() { printf '[%4d s] %s\n' "$SECONDS" "$*"; }
need_root() { [ "$(id -u)" = 0 ] || die "must run as root: it makes namespaces, mounts and cgroups"; }
need() {
  local c missing=()
  for c; do command -v "$c" >/dev/null || missing+=("$c"); done
  [ ${#missing[@]} = 0 ] || die "missing: ${missing[*]}. Run hack/cluster/build.sh, which installs Debian's packages, or install them yourself"
}

# exclusive NAME: one holder per machine and cache; a second caller waits. The lock ends with the process, so it is never stale.
# Long-lived children must be started with 9>&-, or they would keep it.
exclusive() {
  mkdir -p "$CLUSTER"
  exec 9>"$CLUSTER/$1.lock"
  flock -n 9 || { say "waiting for another ${0##*/} ($1.lock)"; flock 9; }
}

# wait_for SECONDS WHAT COMMAND...: poll until the command succeeds, or die naming WHAT.
wait_for() {
  local deadline=$((SECONDS + $1)) what=$2; shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $deadline ] || die "timed out waiting for $what; logs: $NODE/log"
    sleep 0.1
  done
}

# The node's processes as the host sees them: those with the node's directory as an argument of their own. Read from /proc and
# not from a pid file, so that an up.sh that was killed at any moment leaves nothing that down.sh cannot find.
# -- the `unshare` parent and the node's first process (pid 1 of the innermost namespace), in that order; empty when none runs.
node_unshare() { _node_processes '^NSpid:\s+[0-9]+$'; }
node_pid() { _node_processes '^NSpid:\s+[0-9]+\s+1$'; }
any_node() { grep -lzx 'TRIMTAB_NODE=.*' /proc/[0-9]*/cmdline 2>/dev/null || true; }  # of whichever cache
_node_processes() {
  local f
  for f in $(grep -lzxF "TRIMTAB_NODE=$NODE" /proc/[0-9]*/cmdline 2>/dev/null || true); do
    if grep -qE "$1" "${f%cmdline}status" 2>/dev/null && ! grep -q '^State:\s*Z' "${f%cmdline}status"; then
      f=${f%/cmdline}; echo "${f##*/}"
    fi
  done
}

node_ctr() { "$HERE/enter.sh" ctr -a "$NODE/containerd.sock" -n k8s.io "$@"; }

# import_image TAR: into the running node, unless this very archive is there already.
import_image() {
  local tar=$1 seen=$NODE/imported/${1##*/} stamp
  stamp=$(stat -c '%Y %s' "$tar")
  [ "$(cat "$seen" 2>/dev/null)" != "$stamp" ] || return 0
  node_ctr images import "$tar" >/dev/null
  mkdir -p "$NODE/imported"; echo "$stamp" > "$seen"
}

# daemonless ARGUMENTS...: buildah with storage of its own and no daemon. In its own mount namespace, so that the mounts it would leave
# behind end with it. Overlay where the file system has it; vfs works everywhere but copies each layer in full (a minute per build).
daemonless() {
  local driver=vfs probe
  probe=$(mktemp -d -p "$CLUSTER"); mkdir "$probe"/{l,u,w,m}
  unshare --mount mount -t overlay -o "lowerdir=$probe/l,upperdir=$probe/u,workdir=$probe/w" overlay "$probe/m" 2>/dev/null && driver=overlay
  rm -rf "$probe"
  unshare --mount buildah --root "$CLUSTER/buildah-$driver/storage" --runroot "$CLUSTER/buildah-$driver/run" --storage-driver $driver "$@"
}
