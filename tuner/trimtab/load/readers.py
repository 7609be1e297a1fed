"""Public traces in: Azure LLM inference CSV and Mooncake JSONL (plain or .gz). Arrivals start at 0 and ascend.

Bad files end in a TraceError that names file, line and field. Neither format records cancellations or max_tokens: the
limit is taken equal to the output, and `trimtab.load.trace` adds what a study needs.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from trimtab.errors import InputError, TraceError
from trimtab.load.trace import Request

MOONCAKE_BLOCK_TOKENS = 512
_AZURE_FIELDS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_trace(source: str, option: str = "--trace") -> list[Request]:
    """`azure:FILE` or `mooncake:FILE`."""
    kind, colon, name = source.partition(":")
    reader = READERS.get(kind)
    if not colon or reader is None or not name:
        raise InputError(
            option, f"{source!r} names no known format", f"Write {' or '.join(f'{kind}:FILE' for kind in READERS)}."
        )
    return reader(Path(name))


def read_azure(path: Path) -> list[Request]:
    """Columns TIMESTAMP (date and time), ContextTokens, GeneratedTokens, found by name; other columns are ignored."""
    text = _text(path)
    rows = csv.DictReader(io.StringIO(text, newline=""))
    missing = [name for name in _AZURE_FIELDS if name not in (rows.fieldnames or ())]
    if missing:
        _refuse(
            path,
            1,
            missing[0],
            "this column is missing from the header",
            f"Give a CSV with the columns {', '.join(_AZURE_FIELDS)}.",
        )
    read: list[tuple[float, int, int]] = []
    first: datetime | None = None
    for row in rows:
        line = rows.line_num
        when = _azure_time(path, line, row.get("TIMESTAMP"))
        try:
            first = first or when
            at = (when - first).total_seconds()
        except TypeError:
            _refuse(path, line, "TIMESTAMP", "some lines name a time zone and some do not", "Make the column uniform.")
        tokens = [_count(path, line, name, row.get(name)) for name in _AZURE_FIELDS[1:]]
        read.append((at, *tokens))  # type: ignore[arg-type]
    if not read:
        _refuse(path, 1, "TIMESTAMP", "there is no request below the header", "Give a file with at least one request.")
    read.sort(key=lambda r: r[0])
    start = read[0][0]
    return [Request(at - start, prompt, output, None, 0, None, output) for at, prompt, output in read]


def read_mooncake(path: Path) -> list[Request]:
    """One JSON object a line: timestamp (ms), input_length, output_length, hash_ids (one per 512 prompt tokens, the
    last partial).

    Equal ids stand for equal tokens with an equal past, so they form a tree of prefixes; what of it more than one
    request of the file uses becomes the shared prefix. `prefix_group` is the deepest shared block, for readers that
    know no trees.
    """
    read: list[tuple[float, int, int, tuple[int, ...]]] = []
    for line, row in _json_lines(path):
        at = _milliseconds(path, line, row.get("timestamp"))
        prompt = _count(path, line, "input_length", row.get("input_length"))
        output = _count(path, line, "output_length", row.get("output_length"))
        read.append((at, prompt, output, _blocks(path, line, row.get("hash_ids", []))))
    if not read:
        _refuse(path, 1, "timestamp", "there is no request in the file", "Give a file with at least one request.")
    read.sort(key=lambda r: r[0])
    uses = Counter(block for *_, blocks in read for block in blocks)
    start = read[0][0]
    out = []
    for at, prompt, output, blocks in read:
        depth = next((n for n, block in enumerate(blocks) if uses[block] == 1), len(blocks))
        shared = blocks[:depth]
        prefix = min(prompt, depth * MOONCAKE_BLOCK_TOKENS)
        group = shared[-1] if shared else None
        out.append(Request(at - start, prompt, output, group, prefix, None, output, shared, MOONCAKE_BLOCK_TOKENS))
    return out


READERS: Mapping[str, Callable[[Path], list[Request]]] = {"azure": read_azure, "mooncake": read_mooncake}


def _refuse(path: Path, line: int, field: str, problem: str, fix: str) -> NoReturn:
    raise TraceError(f"{path}:{line} {field}", problem, fix)


def _text(path: Path) -> str:
    """The file, unpacked if it is gzip (by its first bytes: names lie)."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as error:  # gzip.BadGzipFile is an OSError
        raise TraceError(
            str(path), f"cannot be read ({error})", "Check the path and that the file came over whole."
        ) from error
    except UnicodeDecodeError as error:
        raise TraceError(
            str(path), f"is not UTF-8 text ({error.reason} at byte {error.start})", "Give the CSV or JSONL file itself."
        ) from error


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    for line, text in enumerate(_text(path).split("\n"), start=1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            _refuse(path, line, f"column {error.colno}", f"not JSON: {error.msg}", "Give one JSON object a line.")
        except (ValueError, RecursionError):  # a number of thousands of digits, or as many brackets
            _refuse(path, line, "line", "is no JSON that can be read", "Give one JSON object a line.")
        if not isinstance(row, dict):
            _refuse(
                path, line, "line", f"a {type(row).__name__} where an object should be", "Give one JSON object a line."
            )
        yield line, row


def _azure_time(path: Path, line: int, value: str | None) -> datetime:
    # Azure writes seven decimals of a second; datetime takes six
    text = (value or "").strip()
    whole, dot, rest = text.partition(".")
    digits = len(rest) - len(rest.lstrip("0123456789"))
    try:
        return datetime.fromisoformat(f"{whole}.{rest[:digits][:6].ljust(6, '0')}{rest[digits:]}" if dot else text)
    except ValueError:
        _refuse(path, line, "TIMESTAMP", f"{text!r} is not a date and time", "Write 2023-11-16 18:15:46.68.")


def _count(path: Path, line: int, field: str, value: object) -> int:
    """Token counts of at least 1; a 0 becomes 1, for a server cannot generate nothing."""
    try:
        if (
            isinstance(value, bool)
            or (isinstance(value, float) and not value.is_integer())
            or not isinstance(value, str | int | float)
        ):
            raise ValueError
        count = int(value)
    except (ValueError, OverflowError):
        _refuse(
            path,
            line,
            field,
            "is missing" if value is None else f"{value!r} is not a whole number",
            "Give a number of tokens.",
        )
    if count < 0:
        _refuse(path, line, field, f"{count} is negative", "Give a number of tokens.")
    return max(1, count)


def _milliseconds(path: Path, line: int, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        problem = "is missing" if value is None else f"{value!r} is not a number"
        _refuse(path, line, "timestamp", problem, "Give milliseconds since the start of the trace.")
    return value / 1000.0


def _blocks(path: Path, line: int, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(block) is int for block in value):
        _refuse(
            path,
            line,
            "hash_ids",
            "is not a list of whole numbers",
            "Give one id per 512 prompt tokens, or leave the field out.",
        )
    return tuple(value)
