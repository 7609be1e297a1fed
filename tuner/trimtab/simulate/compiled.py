"""numba behind one typed decorator, with a compiled-code cache that follows the sources.

numba notices a changed file, not a changed callee in another file: the cache folder's name therefore holds a hash of
the files of this room with compiled code and of `state.py`, whose constants are compiled in. An image brings machine
code in a read-only folder (`TRIMTAB_COMPILED`, made by `precompile`); numba wants one that it can write to, so it is
copied. Where no folder can be written the code is compiled anew in each process (seconds).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
from numba.core import config

_settings: Any = config
P = ParamSpec("P")
R = TypeVar("R")


def cache_folder() -> Path:
    """`NUMBA_CACHE_DIR` if set, else a folder named after the compiled sources: the user's cache, or shared memory.

    Shared memory serves where the root filesystem is read-only. Folders of other users are not trusted.
    """
    named = os.environ.get("NUMBA_CACHE_DIR")
    if named:
        return Path(named)
    digest = hashlib.sha256(numba.__version__.encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        source = file.read_bytes()
        if b"@compiled" in source or file.name in ("compiled.py", "state.py"):
            digest.update(source)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "trimtab"
    for place in (base, Path(f"/dev/shm/trimtab-{os.getuid()}")):
        if _usable(place):
            return place / f"compiled-{digest.hexdigest()[:16]}"
    return base / f"compiled-{digest.hexdigest()[:16]}"


def _usable(folder: Path) -> bool:
    """It is there or could be made, this user's own, and can be written to."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid()


def bring(folder: Path, brought: str | None) -> None:
    """Copy the machine code of an image to where numba looks, unless some is there. Several processes may do so."""
    source = Path(brought) / folder.name if brought else None
    if source is None or folder.exists() or not source.is_dir() or not _usable(folder.parent):
        return
    copy = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    shutil.copytree(source, copy, dirs_exist_ok=True)
    try:
        copy.rename(folder)
    except OSError:  # another process was first
        shutil.rmtree(copy)


_FOLDER = cache_folder()
bring(_FOLDER, os.environ.get("TRIMTAB_COMPILED"))
_CACHED = _usable(_FOLDER)


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
