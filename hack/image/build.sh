#!/bin/bash
# build.sh: build the top-level Dockerfile as localhost/trimtab:dev without a daemon or a registry, keep it as an archive that every
# cluster's up.sh imports, and import it into a running cluster. Unchanged inputs: a second. A source-only change: about 20 s. Cold: about
# 2 minutes. FORCE=1 builds again. TRIMTAB_BASE=<image> takes another base, for instance python:3.11-slim-bookworm.
# It prints the image's name; manifests use it with imagePullPolicy IfNotPresent or Never.
. "$(dirname "$0")/../cluster/lib.sh"
need_root; need buildah flock python3
TREE=$(cd "$HERE/../.." && pwd)
IMAGE_HERE=$TREE/hack/image
exclusive image-build
cd "$TREE"
[ -f constraints.txt ] || die "constraints.txt is missing at the top of the tree"

BASE=${TRIMTAB_BASE:-$("$IMAGE_HERE/base.sh" 9>&- | tail -1)}
# The content of everything that the Dockerfile copies. Names too: a moved file is a change.
INPUTS=(Dockerfile .dockerignore pyproject.toml constraints.txt README.md LICENSE)
KEY=$({ echo "$BASE"; sha256sum "${INPUTS[@]}"; find operator tuner -type f ! -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum; } | sha256sum | cut -c1-16)
TAR=$IMAGES/trimtab-dev.tar
if [ -z "${FORCE:-}" ] && [ -f "$TAR" ] && [ "$(cat "$IMAGES/trimtab-dev.key" 2>/dev/null)" = "$KEY" ]; then
  if [ -n "$(node_pid)" ]; then import_image "$TAR"; fi
  echo "localhost/trimtab:dev (unchanged)"
  exit 0
fi

# pip inside the build gets this machine's settings (index, certificate, wheel directories) as mounts, which leave nothing in the image
# and need nothing in the Dockerfile. `pip config list` has those from files and from PIP_* variables.
MOUNTS=$(mktemp -d); trap 'rm -rf "$MOUNTS"' EXIT
ARGS=()
python3 - > "$MOUNTS/pip.conf" <<'P'
import ast, subprocess, sys
print("[global]")
settings = {}
for line in subprocess.run([sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True).stdout.splitlines():
    name, _, value = line.partition("=")
    key = name.rpartition(".")[2]
    if key in {"cert", "client-cert", "index-url", "extra-index-url", "find-links", "trusted-host", "proxy", "timeout", "no-index"}:
        settings[key] = ast.literal_eval(value).replace("\n", " ")
for key, value in settings.items():
    print(f"{key} = {value}")
P
ARGS+=(--volume "$MOUNTS/pip.conf:/etc/pip.conf:ro")
for path in $(sed -n 's/^\(cert\|client-cert\|find-links\) = //p' "$MOUNTS/pip.conf"); do
  case $path in /*) if [ -e "$path" ]; then ARGS+=(--volume "$path:$path:ro"); fi ;; esac
done

say "building localhost/trimtab:dev on $BASE (about 20 s after a change of the source, 2 minutes cold)"
"$HERE/image.sh" trimtab:dev Dockerfile . --layers --build-arg "BASE=$BASE" "${ARGS[@]}" 9>&-
echo "$KEY" > "$IMAGES/trimtab-dev.key"
say "built, $(du -m "$TAR" | cut -f1) MB"
# Layers of earlier builds are the cache that makes the next one fast; they go when they have piled up.
if [ "$(du -sm "$CLUSTER"/buildah-*/storage | awk '{n += $1} END {print n}')" -gt 4000 ]; then daemonless rmi --prune >/dev/null 2>&1 || true; fi
echo "localhost/trimtab:dev"
