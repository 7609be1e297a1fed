#!/bin/bash
# The node's first process: host isolation, network, cgroups, then every component, each started again when it ends.
# up.sh starts it inside fresh namespaces, with TRIMTAB_NODE=<its directory> as the mark to find it by. Never run it by hand.
. "$(dirname "$0")/lib.sh"
[ $$ = 1 ] || die "runs only as pid 1 of the namespaces that up.sh makes"
cd "$NODE"
mkdir -p pki kubeconfig containerd cni hidden

# --- keep the host's files and settings untouched ---------------------------------------------------------------------
# Some components write to fixed paths: containerd's shims and CNI's netns names to /run, CNI's results to /var/lib/cni, the
# kubelet to /var/lib/kubelet and /var/log/containers. Inside this mount namespace those paths are directories of ours.
for d in "${HIDDEN[@]}"; do
  mkdir -p "hidden$d" "$d"
  mount --bind "hidden$d" "$d"
done
mkdir -p /run/lock
# The kubelet sets these kernel-wide values at start; it writes to files of ours instead.
for s in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
  mkdir -p "hidden/proc/$(dirname $s)"
  cat /proc/sys/$s > hidden/proc/$s
  mount --bind hidden/proc/$s /proc/sys/$s
done
mount --make-rshared /  # the kubelet wants shared propagation; shared within this namespace only
hostname node-1

# --- network ----------------------------------------------------------------------------------------------------------
ip link set lo up
wait_for 10 "the veth from up.sh" ip link show eth0
ip addr add $NODE_IP/$LINK_BITS dev eth0
ip link set eth0 up
ip route add default via $HOST_IP  # the apiserver and kubelet look for a default route; the host forwards nothing
echo 1 > /proc/sys/net/ipv4/ip_forward
# ptp: one routed veth per pod, no bridge, so kube-proxy's rules see all traffic without the br_netfilter module.
cat > cni/10-pods.conflist <<Y
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "ptp", "ipMasq": false,
   "ipam": {"type": "host-local", "dataDir": "$NODE/cni/state", "ranges": [[{"subnet": "$POD_CIDR"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
Y

# --- cgroups ----------------------------------------------------------------------------------------------------------
# One parent per v1 controller, so that down.sh can remove what the kubelet makes. A new cpuset starts empty: fill it.
for c in cpu cpuacct cpuset memory devices freezer blkio pids systemd hugetlb; do
  [ ! -d /sys/fs/cgroup/$c ] || mkdir -p /sys/fs/cgroup/$c/$CGROUP
done
for f in cpuset.cpus cpuset.mems; do cat /sys/fs/cgroup/cpuset/$f > /sys/fs/cgroup/cpuset/$CGROUP/$f; done

# --- components -------------------------------------------------------------------------------------------------------
# start NAME COMMAND...: run in the background, log to log/NAME.log, start again a second after it ends.
start() {
  local name=$1; shift
  ( while :; do "$@" >> "log/$name.log" 2>&1 || true; echo "--- $name ended" >> "log/$name.log"; sleep 1; done ) &
}

cat > containerd.toml <<Y
version = 2
root = "$NODE/containerd/root"
state = "$NODE/containerd/state"
[grpc]
  address = "$NODE/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  # without CAP_SYS_RESOURCE runc may not lower oom_score_adj, and no pod would start
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$NODE/cni"
Y
start containerd containerd --config containerd.toml

openssl genrsa -out pki/sa.key 2048 2>/dev/null
openssl rsa -in pki/sa.key -pubout -out pki/sa.pub 2>/dev/null
token() { openssl rand -hex 16; }
ADMIN=$(token) KCM=$(token) SCHEDULER=$(token) PROXY=$(token) KUBELET=$(token) DNS=$(token)
cat > pki/tokens.csv <<Y
$ADMIN,admin,admin,"system:masters"
$KCM,system:kube-controller-manager,kcm
$SCHEDULER,system:kube-scheduler,scheduler
$PROXY,system:kube-proxy,proxy
$DNS,coredns,coredns
$KUBELET,system:node:node-1,kubelet,"system:nodes"
Y
start etcd "$BIN/etcd" --data-dir etcd --unsafe-no-fsync
# InternalIP: else kubectl logs, exec and port-forward try to resolve the name node-1.
start apiserver "$BIN/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --advertise-address=$NODE_IP --cert-dir=pki/apiserver \
  --service-cluster-ip-range=$SERVICE_CIDR --service-account-issuer=https://kubernetes.default.svc \
  --service-account-key-file=pki/sa.pub --service-account-signing-key-file=pki/sa.key --token-auth-file=pki/tokens.csv \
  --authorization-mode=Node,RBAC --allow-privileged=true --kubelet-preferred-address-types=InternalIP

# The API server signs its own certificate at start; clients trust exactly that one.
wait_for 60 "the API server's certificate" test -s pki/apiserver/apiserver.crt
kubeconfig() {
  cat > "$1" <<Y
apiVersion: v1
kind: Config
clusters: [{name: trimtab, cluster: {server: "https://$NODE_IP:6443", certificate-authority-data: $(base64 -w0 pki/apiserver/apiserver.crt)}}]
users: [{name: user, user: {token: $2}}]
contexts: [{name: trimtab, context: {cluster: trimtab, user: user}}]
current-context: trimtab
Y
}
kubeconfig kubeconfig/kcm "$KCM"; kubeconfig kubeconfig/scheduler "$SCHEDULER"; kubeconfig kubeconfig/proxy "$PROXY"
kubeconfig kubeconfig/kubelet "$KUBELET"; kubeconfig kubeconfig/coredns "$DNS"; kubeconfig "$KUBECONFIG_ADMIN" "$ADMIN"
K="$BIN/kubectl --kubeconfig $KUBECONFIG_ADMIN"
wait_for 60 "the API server" $K get --raw /readyz

start kcm "$BIN/kube-controller-manager" --kubeconfig=kubeconfig/kcm --service-account-private-key-file=pki/sa.key \
  --root-ca-file=pki/apiserver/apiserver.crt --use-service-account-credentials=true --leader-elect=false
start scheduler "$BIN/kube-scheduler" --kubeconfig=kubeconfig/scheduler --leader-elect=false
$K create clusterrolebinding kube-proxy --clusterrole=system:node-proxier --user=system:kube-proxy

# The pause image first: the kubelet can start nothing without it.
wait_for 30 "containerd" ctr -a containerd.sock version
ctr -a containerd.sock -n k8s.io images import "$IMAGES/pause-1.tar"  # up.sh imports the others meanwhile

cat > kubelet.yaml <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false                  # 1.35 and later refuse cgroup v1 otherwise
cgroupDriver: cgroupfs
cgroupRoot: /$CGROUP
enforceNodeAllocatable: []
failSwapOn: false
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix://$NODE/containerd.sock
makeIPTablesUtilChains: false
clusterDNS: [$DNS_IP]
clusterDomain: cluster.local
resolvConf: ""                       # the host's search domains stay out of the pods
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
Y
start kubelet "$BIN/kubelet" --config=kubelet.yaml --kubeconfig=kubeconfig/kubelet --hostname-override=node-1 --node-ip=$NODE_IP -v=2
# conntrack limits belong to the host's own namespace: 0 leaves them alone.
start proxy "$BIN/kube-proxy" --kubeconfig=kubeconfig/proxy --hostname-override=node-1 --proxy-mode=iptables --cluster-cidr=$POD_CIDR \
  --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0

# DNS: a process on the node behind the usual Service address; no image, no Deployment. It knows only the cluster's names.
cat > Corefile <<Y
cluster.local:53 {
  errors
  ready 127.0.0.1:8181
  cache 2
  kubernetes cluster.local {
    kubeconfig $NODE/kubeconfig/coredns
  }
}
Y
$K create clusterrole coredns --verb=list,watch --resource=services,pods,namespaces,endpointslices.discovery.k8s.io
$K create clusterrolebinding coredns --clusterrole=coredns --user=coredns
start coredns "$BIN/coredns" -conf Corefile
$K create -f - <<Y
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: $DNS_IP
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
endpoints: [{addresses: [$NODE_IP], conditions: {ready: true}}]
ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
Y
touch started
wait
