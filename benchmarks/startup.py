"""How long a person waits for `--help` and `status`: `python benchmarks/startup.py [--times N] [FILE.json]`.

Prints the shortest and the median of N starts, in milliseconds and as a ratio to `python -c pass` of the same run,
taken in turns so that a busy machine burdens all alike. `status` asks a kubectl that answers at once with an empty
list: what Trimtab itself takes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

#: what a person may wait for; the shortest start is held against it
LIMIT_SECONDS: Final = 0.3
_BARE: Final = "python -c pass"
_TRIMTAB: Final = ["-m", "trimtab.cli.main"]
_PLUGIN: Final = ["-m", "trimtab_operator.plugin"]
COMMANDS: Final[Mapping[str, Sequence[str]]] = {
    _BARE: ["-c", "pass"],
    "trimtab --help": [*_TRIMTAB, "--help"],
    "trimtab --version": [*_TRIMTAB, "--version"],
    "trimtab tune --help": [*_TRIMTAB, "tune", "--help"],
    "trimtab report --help": [*_TRIMTAB, "report", "--help"],
    "kubectl trimtab --help": [*_PLUGIN, "--help"],
    "kubectl trimtab status": [*_PLUGIN, "status"],
    "kubectl trimtab status NAME": [*_PLUGIN, "status", "absent"],
}
_KUBECTL: Final = '#!/bin/sh\necho \'{"kind": "List", "items": []}\'\n'


def measure(times: int) -> dict[str, list[float]]:
    """Command -> seconds of each start, in turns."""
    found: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        kubectl = Path(folder) / "kubectl"
        kubectl.write_text(_KUBECTL)
        kubectl.chmod(0o755)
        environ = os.environ | {"KUBECTL": str(kubectl)}
        for _ in range(times):
            for name, words in COMMANDS.items():
                begun = time.perf_counter()
                subprocess.run([sys.executable, *words], env=environ, capture_output=True, timeout=60, check=False)
                found[name].append(time.perf_counter() - begun)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("file", nargs="?", type=Path)
    asked = parser.parse_args()
    found = measure(asked.times)
    bare = min(found[_BARE])
    print(f"{'command':<30} {'shortest':>9} {'median':>9}   times {_BARE!r}")
    for name, seconds in found.items():
        slow = "" if min(seconds) <= LIMIT_SECONDS else f"   over {LIMIT_SECONDS * 1000:.0f} ms"
        shown = f"{1000 * min(seconds):>6.0f} ms {1000 * median(seconds):>6.0f} ms"
        print(f"{name:<30} {shown}   {min(seconds) / bare:5.1f}{slow}")
    if asked.file is not None:
        asked.file.write_text(json.dumps({n: {"min": min(s), "ratio": min(s) / bare} for n, s in found.items()}))


if __name__ == "__main__":
    main()
