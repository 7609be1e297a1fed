#!/bin/bash
# image.sh NAME:TAG DOCKERFILE CONTEXT [buildah arguments]: build localhost/NAME:TAG without a daemon, keep it as an archive that every
# later up.sh imports, and import it now if a cluster runs. DOCKERFILE may be - (standard input).
# In pods: `image: localhost/NAME:TAG`, and `imagePullPolicy: Never` or IfNotPresent (there is no registry).
. "$(dirname "$0")/lib.sh"
[ $# -ge 3 ] || die "usage: image.sh NAME:TAG DOCKERFILE CONTEXT [buildah arguments]"
need_root; need buildah flock
NAME=$1 FILE=$2 CONTEXT=$3; shift 3
exclusive image
mkdir -p "$IMAGES"
if [ "$FILE" = - ]; then FILE=$(mktemp); trap 'rm -f "$FILE"' EXIT; cat > "$FILE"; fi
LOG=$CLUSTER/image.log
# chroot isolation needs no user namespaces and no network of its own
daemonless bud --isolation chroot "$@" -t "localhost/$NAME" -f "$FILE" "$CONTEXT" >"$LOG" 2>&1 || { tail -40 "$LOG" >&2; die "buildah failed; its whole output: $LOG"; }
TAR=$IMAGES/${NAME//[:\/]/-}.tar
# Under another name first: up.sh imports every *.tar, and must not meet half of one.
rm -f "$TAR.part"
daemonless push -q "localhost/$NAME" "docker-archive:$TAR.part:localhost/$NAME"
mv "$TAR.part" "$TAR"
if [ -n "$(node_pid)" ]; then import_image "$TAR"; fi
