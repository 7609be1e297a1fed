"""Manifest files in and out: bytes kept as they are, sizes limited, writes atomic. `-` is standard input."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from trimtab.errors import InputError

STDIN: Final = "-"
#: ten times etcd's limit of 1.5 MiB for one object, rounded up: a whole rendered chart fits
MOST_BYTES: Final = 16 * 1024 * 1024
#: PowerShell's `>` writes UTF-16 with a mark. Longest first: UTF-32's mark begins with UTF-16's.
_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


@dataclass(frozen=True)
class TextFile:
    """name: as the person wrote it. mark: the byte order mark found, kept on the way out."""

    name: str
    text: str = field(repr=False)
    encoding: str
    mark: bytes

    def to_bytes(self, text: str) -> bytes:
        return self.mark + text.encode(self.encoding)


def read_files(names: Sequence[str], field_name: str = "FILE") -> list[TextFile]:
    """Each file's text, line ends untouched. Raises `InputError` naming the file."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(field_name, f"{twice} is given twice", "Name each file once.")
    return [_decoded(name, _read(name, field_name), field_name) for name in names]


def _read(name: str, field_name: str) -> bytes:
    if name == STDIN:
        raw = sys.stdin.buffer.read(MOST_BYTES + 1)
    else:
        path = Path(name)
        if path.is_dir():
            raise InputError(field_name, f"{name} is a folder", f"Name its files: {name.rstrip('/')}/*.yaml.")
        try:
            with path.open("rb") as file:
                raw = file.read(MOST_BYTES + 1)
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", None) or "no valid path"
            raise InputError(field_name, f"{name} cannot be read ({problem})", "Name a file, or - for stdin.") from None
    if len(raw) > MOST_BYTES:
        limit = f"{MOST_BYTES // 1024**2} MiB"
        raise InputError(field_name, f"{name} is larger than {limit}", "Give the manifests of the target only.")
    return raw


def _decoded(name: str, raw: bytes, field_name: str) -> TextFile:
    mark, encoding = next(((m, e) for m, e in _MARKS if raw.startswith(m)), (b"", "utf-8"))
    try:
        text = raw[len(mark) :].decode(encoding)
    except UnicodeDecodeError as error:
        problem = f"{name} is not {encoding.upper()} text (byte {error.start + len(mark)})"
        raise InputError(field_name, problem, "Save it as UTF-8.") from None
    if "\0" in text:
        raise InputError(field_name, f"{name} holds bytes that are no text", "Name a YAML or JSON file.")
    return TextFile("stdin" if name == STDIN else name, text, encoding, mark)


def write_files(changed: Sequence[tuple[TextFile, str]]) -> None:
    """Each file replaced by its new text in one step, mode and owner kept; a link's file is written, not the link.

    All new contents are on disk before the first file is replaced. Raises `InputError` if one cannot be written, or
    changed since it was read.
    """
    prepared: list[tuple[Path, Path]] = []
    try:
        for file, text in changed:
            path = Path(file.name).resolve()
            if path.read_bytes() != file.to_bytes(file.text):
                raise InputError("--in-place", f"{file.name} changed while it was edited", "Run the command again.")
            prepared.append((_prepared(path, file.to_bytes(text)), path))
        for temporary, path in prepared:
            temporary.replace(path)
    except OSError as error:
        problem = f"{error.filename or 'a file'} cannot be written ({error.strerror})"
        raise InputError("--in-place", problem, "Make the file and its folder writable.") from None
    finally:
        for temporary, _ in prepared:
            temporary.unlink(missing_ok=True)


def _prepared(path: Path, raw: bytes) -> Path:
    """A file beside `path` with the new bytes, synced, and with its mode and owner."""
    found = path.stat()
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
            with contextlib.suppress(PermissionError):
                os.fchown(file.fileno(), found.st_uid, found.st_gid)
            os.fchmod(file.fileno(), found.st_mode & 0o7777)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)
