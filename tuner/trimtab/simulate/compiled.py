"""numba behind one typed decorator, with a compiled-code cache that follows the sources.

numba notices a changed file, not a changed callee in another file: the cache folder's name therefore holds a hash of
the files of this room with compiled code and of `state.py`, whose constants are compiled in. Where no folder can be written the code is compiled anew in each process (seconds).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
from numba.core import config

_settings: Any = config
P = ParamSpec("P")
R = TypeVar("R")


def cache_folder() -> Path:
    """`NUMBA_CACHE_DIR` if set, else a folder of the user's cache named after the compiled sources."""
    named = os.environ.get("NUMBA_CACHE_DIR")
    if named:
        return Path(named)
    digest = hashlib.sha256(numba.__version__.encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        source = file.read_bytes()
        if b"@compiled" in source or file.name in ("compiled.py", "state.py"):
            digest.update(source)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(base) / "trimtab" / f"compiled-{digest.hexdigest()[:16]}"


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


_FOLDER = cache_folder()
_CACHED = _writable(_FOLDER)


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Machine code at the first call, read from the cache afterwards. Integer and float semantics are C's, without
    fast-math: results are the same on every run.
    """
    before = _settings.CACHE_DIR
    _settings.CACHE_DIR = str(_FOLDER) if _CACHED else before
    try:
        return cast(Callable[P, R], numba.njit(cache=_CACHED, nogil=True, error_model="numpy")(function))
    finally:
        _settings.CACHE_DIR = before
