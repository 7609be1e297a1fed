"""The Prometheus text format -> the wanted values. Pure, and hardened: the text comes from someone else's container.

Each wanted line is parsed alone, so that one broken line costs one value. Lines of other metrics are not parsed at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from trimtab.observe.metrics import WANTED, own_labels
from trimtab.observe.samples import SeriesKey

#: cache_config_info, the longest line of vLLM 0.32, has about 1,500 characters
MAX_LINE = 16_384
#: vLLM 0.32 has about 200 wanted series per engine
MAX_SERIES = 5_000
#: characters of wanted lines that are parsed: room for MAX_SERIES of them. A hostile line of MAX_LINE costs up to 35 ms
#: (measured: escaped quotes), so that a text of any size is done in some 2 seconds
MAX_PARSED = 1 << 20
#: vLLM's names as Ray's metrics agent shows them. A page of several engines counts the first: nothing tells them apart
_RAY = "ray_vllm_"


@dataclass(frozen=True)
class Exposition:
    """values by series; `broken`.

    Wanted lines that could not be read, were not finite or came twice (the first one counts).
    """

    values: dict[SeriesKey, float] = field(default_factory=dict)
    broken: int = 0


def parse(text: str) -> Exposition:
    """Never raises for any text. Values NaN and Inf are dropped: they are no measurements."""
    values: dict[SeriesKey, float] = {}
    broken = parsed = 0
    for written in text.split("\n"):
        line = f"vllm:{written[len(_RAY) :]}" if written.startswith(_RAY) else written
        if not line or not _wanted(line):
            continue
        sample = None
        if len(line) <= MAX_LINE and len(values) < MAX_SERIES and parsed < MAX_PARSED:
            parsed += len(line)
            sample = _sample(line)
        if sample is None or sample[0] in values:
            broken += 1
        else:
            values[sample[0]] = sample[1]
    return Exposition(values, broken)


def _wanted(line: str) -> bool:
    head = line[:128].lstrip()
    return head.split("{", 1)[0].split(" ", 1)[0].split("\t", 1)[0] in WANTED


def _sample(line: str) -> tuple[SeriesKey, float] | None:
    """The parser raises ValueError and, on odd lines, IndexError; int -> float can overflow."""
    try:
        for family in text_string_to_metric_families(line + "\n"):
            for sample in family.samples:
                value = float(sample.value)
                if math.isfinite(value):
                    return (sample.name, own_labels(sample.name, sample.labels)), value
    except (ValueError, IndexError, OverflowError):
        return None
    return None
