"""One Record per request, and its JSON line. A line is flushed as soon as the request has ended, so that `kubectl
logs -f` carries it live.

All times are epoch seconds of the client's wall clock, taken once at the start and carried on by the monotonic clock:
differences are true durations even if the wall clock is set meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TextIO, get_args

from trimtab.errors import InputError, TraceError, TrimtabError

#: ok: the stream ended with finish_reason stop or length and [DONE]. cancelled: left as planned. gave_up: no first
#: token within the patience. failed: see cause. not_sent: too many in flight. unfinished: the run was ended before the
#: request.
Ending = Literal["ok", "cancelled", "gave_up", "failed", "not_sent", "unfinished"]
ENDINGS: tuple[Ending, ...] = get_args(Ending)


@dataclass(frozen=True, slots=True)
class Record:
    """What became of one request. `tokens` were received, `planned_tokens` would have come; `max_tokens` is the limit
    that was sent.
    """

    number: int
    arrival_at: float
    sent_at: float | None
    first_token_at: float | None
    last_token_at: float | None
    ended_at: float
    prompt_tokens: int
    planned_tokens: int
    max_tokens: int
    tokens: int
    ending: Ending
    cause: str | None = None
    detail: str | None = None
    keepalive: bool = False

    @property
    def ttft_seconds(self) -> float | None:
        """Sending to first token."""
        return None if self.sent_at is None or self.first_token_at is None else self.first_token_at - self.sent_at

    @property
    def tpot_seconds(self) -> float | None:
        """Mean time per token after the first; None below two tokens."""
        if self.first_token_at is None or self.last_token_at is None or self.tokens < 2:
            return None
        return (self.last_token_at - self.first_token_at) / (self.tokens - 1)

    @property
    def e2e_seconds(self) -> float | None:
        return None if self.sent_at is None else self.ended_at - self.sent_at


def to_line(record: Record) -> str:
    """Compact JSON without a newline; times to 0.1 ms; fields that are None are left out."""
    row = {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in asdict(record).items()
        if value is not None
    }
    return json.dumps(row, separators=(",", ":"))


class RecordWriter:
    """Appends lines to a stream that someone else opened and will close."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, record: Record) -> None:
        try:
            self._file.write(to_line(record) + "\n")
            self._file.flush()
        except OSError as error:
            raise TrimtabError(
                f"records cannot be written: {error}", hint="Check the disk, or whoever reads the pipe."
            ) from error


def read_records(path: Path) -> list[Record]:
    """A file of lines. Lines that are not JSON objects of ours are refused, but for a last one cut short by a kill."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            str(path), f"cannot be read ({error})", "Give a file written by `trimtab load --records`."
        ) from error
    return list(parse_records(text, str(path)))


def parse_records(text: str, name: str) -> Iterator[Record]:
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):  # no newline behind it: the writer was killed in the middle
                return
            raise TraceError(
                f"{name}:{number}", f"not JSON: {error.msg}", "Keep only the lines of `trimtab load --records`."
            ) from error
        yield _record(row, f"{name}:{number}")


_NULLABLE = {f.name for f in fields(Record) if "None" in str(f.type)}
_TEXTS = {"ending", "cause", "detail"}


def _record(row: object, where: str) -> Record:
    fix = "Keep only the lines of `trimtab load --records`."
    if not isinstance(row, dict):
        raise TraceError(where, "is not a JSON object", fix)
    values: dict[str, Any] = {}
    for field in fields(Record):
        value = row.get(field.name)
        if value is None and field.name in _NULLABLE:
            values[field.name] = None
            continue
        if isinstance(value, str) is not (field.name in _TEXTS) or not isinstance(value, str | int | float):
            raise TraceError(f"{where} {field.name}", "is missing" if value is None else f"cannot be {value!r}", fix)
        values[field.name] = value
    if values["ending"] not in ENDINGS:
        raise TraceError(f"{where} ending", f"{values['ending']!r} is unknown", f"Known are {', '.join(ENDINGS)}.")
    return Record(**values)
