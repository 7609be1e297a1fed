"""Files of /metrics texts over time -> `Samples`. The time is in the file's name, never its modification time, which a
copy changes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from trimtab.errors import InputError
from trimtab.observe.exposition import parse
from trimtab.observe.metrics import PREFIX
from trimtab.observe.samples import Samples, SeriesKey

#: the one target that files are of
TARGET: Final = "target"
_UNIX: Final = re.compile(r"(?<!\d)(\d{10}(?:\.\d+)?)(?!\d)")
_ISO: Final = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)[T_ -](\d\d)[:-]?(\d\d)[:-]?(\d\d(?:\.\d+)?)Z?")
_FIX: Final = "Save as e.g. metrics-$(date +%s).txt, one file per scrape; or 2026-11-30T12:00:00Z.txt (UTC)."


def read_texts(paths: Sequence[Path]) -> tuple[Samples, float, float]:
    """Samples of TARGET, and the first and last unix time. InputError names the file."""
    series: dict[SeriesKey, list[tuple[float, float]]] = defaultdict(list)
    seen: dict[float, Path] = {}
    for path in paths:
        at = time_of(path)
        if at in seen:
            raise InputError("--metrics", f"{path} and {seen[at]} are of the same time", _FIX)
        seen[at] = path
        try:
            values = parse(path.read_text(encoding="utf-8", errors="replace")).values
        except OSError as error:
            raise InputError(
                "--metrics", f"{path} cannot be read ({error.strerror})", "Name readable files."
            ) from error
        if not any(name.startswith(PREFIX) for name, _ in values):
            fix = "Save what GET /metrics of the engine answers; --disable-log-stats must not be set."
            raise InputError("--metrics", f"{path} holds no vLLM metric", fix)
        for key, value in values.items():
            series[key].append((at, value))
    if len(seen) < 2:
        raise InputError("--metrics", "one scrape counts nothing", "Give at least four, over time.")
    return Samples({TARGET: {k: tuple(sorted(points)) for k, points in series.items()}}), min(seen), max(seen)


def time_of(path: Path) -> float:
    """Unix seconds or a UTC time in the name."""
    unix, iso = _UNIX.search(path.name), _ISO.search(path.name)
    if unix:
        return float(unix[1])
    if not iso:
        raise InputError("--metrics", f"{path.name} does not say its time", _FIX)
    year, month, day, hour, minute = (int(part) for part in iso.groups()[:5])
    try:
        return datetime(year, month, day, hour, minute, tzinfo=UTC).timestamp() + float(iso[6])
    except ValueError as error:
        raise InputError("--metrics", f"{path.name} holds no time that exists", _FIX) from error
