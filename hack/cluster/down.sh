#!/bin/bash
# down.sh [--keep-logs]: stop the cluster and remove its state (processes, mounts, cgroups, link, routes, kubeconfig). Binaries and
# images stay. Safe at any time: when nothing runs, when up.sh was killed half-way, after a reboot.
. "$(dirname "$0")/lib.sh"
need_root
[ -n "${TRIMTAB_NODE_LOCKED:-}" ] || exclusive node  # up.sh calls this while it holds the lock

# SIGKILL, because a shell as pid 1 ignores SIGTERM. The kernel then kills every process of the pid namespace, and with them go the
# mounts, the pods' network namespaces and the iptables rules. The unshare parent may be alone if it was caught before its fork.
gone() { [ -z "$(node_pid)$(node_unshare)" ]; }
for pid in $(node_pid) $(node_unshare); do kill -9 "$pid" 2>/dev/null || true; done
wait_for 30 "the node's processes to end" gone
# The link, the cgroups and the mount points belong to the machine: with another cache's cluster alive they are that one's. (Even an
# rmdir would harm it: removing a directory here undoes the mounts over it in every other mount namespace.)
if [ -z "$(any_node)" ]; then
  ip link del $LINK 2>/dev/null || true  # goes by itself with the namespace, but a moment later
fi

# cgroups outlive their processes. Children first; a process that was just killed may hold its group for a moment.
cgroups() { find /sys/fs/cgroup/*/$CGROUP -depth -type d 2>/dev/null; }
remove_cgroups() { cgroups | xargs -r rmdir 2>/dev/null; [ -z "$(cgroups)" ]; }
[ -n "$(any_node)" ] || wait_for 30 "the pods' cgroups to empty" remove_cgroups

if [ "${1:-}" = --keep-logs ] && [ -d "$NODE" ]; then
  find "$NODE" -mindepth 1 -maxdepth 1 ! -name log -exec rm -rf --one-file-system {} +
else
  rm -rf --one-file-system "$NODE"
fi
rm -f "$KUBECONFIG_ADMIN"
# Mount points that node.sh may have had to make on the host; rmdir spares them when they hold anything.
[ -n "$(any_node)" ] || for d in "${HIDDEN[@]}"; do rmdir --ignore-fail-on-non-empty "$d" 2>/dev/null || true; done
