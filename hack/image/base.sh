#!/bin/bash
# base.sh: a stand-in for python:3.11-slim-bookworm where no registry can be reached: Debian bookworm with python3 and pip, made with
# debootstrap from the machine's own mirror. Prints the image's name (last line), which is keyed by what it is made of.
# Cold about 60 s, warm below a second. Only for local builds; others take the Dockerfile's own default.
. "$(dirname "$0")/../cluster/lib.sh"
need_root; need buildah debootstrap flock python3
exclusive image-base

PIP=pip==26.0
INCLUDE=python3,ca-certificates
# What a Python service never reads.
DROP=(usr/share/doc usr/share/man usr/share/locale usr/share/info var/cache/apt var/lib/apt/lists var/log var/cache/debconf)
KEY=$(sha256sum "${BASH_SOURCE[0]}" | cut -c1-12)
NAME=localhost/trimtab-base:$KEY
if [ -n "$(daemonless images -q "$NAME" 2>/dev/null)" ]; then echo "$NAME"; exit 0; fi

say "base image: debootstrap (about 45 s)" >&2
ROOT=$CLUSTER/base-root LOG=$CLUSTER/base.log
rm -rf --one-file-system "$ROOT"; mkdir -p "$ROOT"
trap 'rm -rf --one-file-system "$ROOT" "$ROOT-wheels" "$ROOT-Dockerfile"' EXIT
# The mirror and suite that apt uses here; debootstrap's default elsewhere.
MIRROR=$(apt-get indextargets --format '$(SITE)' 'Identifier: Packages' 'Codename: bookworm' 'Component: main' 2>/dev/null | sort -u | head -1 || true)
debootstrap --variant=minbase --include=$INCLUDE bookworm "$ROOT" ${MIRROR:+"$MIRROR"} >"$LOG" 2>&1 || { tail -20 "$LOG" >&2; die "debootstrap failed: $LOG"; }

# pip from its wheel: Debian's brings 30 MB of other things and refuses to install beside apt.
rm -rf "$ROOT-wheels"; mkdir -p "$ROOT-wheels"
python3 -m pip download -q --no-deps -d "$ROOT-wheels" "$PIP"
cp "$ROOT-wheels"/*.whl "$ROOT/"
( cd "$ROOT"; W=$(echo pip-*.whl); chroot . python3 "/$W/pip" install -q --break-system-packages --root-user-action ignore --no-index "/$W"; rm "$W" )
rm -f "$ROOT"/usr/lib/python3*/EXTERNALLY-MANAGED
ln -sf /usr/bin/python3 "$ROOT/usr/local/bin/python"
for d in "${DROP[@]}"; do find "$ROOT/$d" -mindepth 1 -delete 2>/dev/null || true; done
find "$ROOT" -name __pycache__ -type d -prune -exec rm -rf {} +

say "base image: committing" >&2
printf 'FROM scratch\nCOPY . /\nENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8\nCMD ["python3"]\n' > "$ROOT-Dockerfile"
daemonless bud -q --isolation chroot --ignorefile /dev/null -t "$NAME" -f "$ROOT-Dockerfile" "$ROOT" >>"$LOG" 2>&1 || { tail -20 "$LOG" >&2; die "buildah failed: $LOG"; }
say "base image: $NAME" >&2
echo "$NAME"
