"""`Space`: the settings that may be tried and their values, on a geometric lattice.

Neighbouring values (64 and 66 sequences) cannot be told apart in live traffic, so each range is cut to 4, 6, 8, 12,
16, 24, ... (steps of 33 to 50%) and its own ends. A value off the lattice belongs to the nearest point: equal cells
are duplicates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Final

from trimtab.engine.settings import SEARCHED, Configuration, Value
from trimtab.errors import InputError

PREFIX = "enable_prefix_caching"
#: a cell: lattice index or boolean per tuned setting (None: unset), then the values of all other settings
Cell = tuple[tuple[str, Value | None], ...]
#: where an unset setting stands: vLLM's default on most GPUs (facts: below 70 GiB). A wrong guess costs insight only
_UNSET: Final = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
#: octaves between prefix caching on and off
CACHING_OCTAVES: Final = 2.0


def lattice(low: int, high: int) -> tuple[int, ...]:
    """Powers of two and 1.5 times powers of two between the ends, and the ends; ascending."""
    points = {low, high}
    step = 1
    while step <= high:
        points.update(p for p in (step, step * 3 // 2) if low <= p <= high)
        step *= 2
    return tuple(sorted(points))


@dataclass(frozen=True)
class Space:
    """`ranges`: inclusive limits of integer settings by name. Settings outside the space keep the baseline's value."""

    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    tune_prefix_caching: bool = True

    def __post_init__(self) -> None:
        for name, (low, high) in self.ranges.items():
            if name not in SEARCHED or SEARCHED[name].kind != "integer":
                raise InputError(name, "is not an integer setting", "Give ranges for integer settings only.")
            if not 1 <= low <= high:
                raise InputError(name, f"{low} to {high} is not a range", "Use 1 <= min <= max.")

    @cached_property
    def lattices(self) -> dict[str, tuple[int, ...]]:
        return {name: lattice(*self.ranges[name]) for name in sorted(self.ranges)}

    @property
    def names(self) -> tuple[str, ...]:
        """Tuned settings in a fixed order."""
        return (*self.lattices, PREFIX) if self.tune_prefix_caching else tuple(self.lattices)

    def index(self, name: str, value: int) -> int:
        """Index of the nearest lattice point by ratio."""
        points = self.lattices[name]
        return min(range(len(points)), key=lambda i: (abs(math.log(points[i] / value)), i))

    def _nearest(self, configuration: Configuration, name: str) -> int | None:
        value = configuration.integer(name)
        return None if value is None else self.index(name, value)

    def snap(self, name: str, value: float) -> int:
        """The nearest lattice point; values outside the range become its end."""
        return self.lattices[name][self.index(name, max(1, round(value)))]

    def contains(self, configuration: Configuration) -> bool:
        """Whether every tuned setting that is set is inside its range, and batched tokens >= sequences where both are
        set."""
        for name, (low, high) in self.ranges.items():
            value = configuration.integer(name)
            if value is not None and not low <= value <= high:
                return False
        return coherent(configuration)

    def cell(self, configuration: Configuration) -> Cell:
        """What makes two configurations duplicates: equal cells."""
        if configuration not in self._cells:
            self._cells[configuration] = self._cell(configuration)
        return self._cells[configuration]

    @cached_property
    def _cells(self) -> dict[Configuration, Cell]:
        return {}

    def _cell(self, configuration: Configuration) -> Cell:
        tuned: list[tuple[str, Value | None]] = [
            (n, configuration.get(n) if n == PREFIX else self._nearest(configuration, n)) for n in self.names
        ]
        others = [(n, v) for n, v in configuration.values_ if n not in self.names]
        return (*tuned, *others)

    def place(self, configuration: Configuration) -> tuple[float, ...]:
        """Log2 of the integer settings, caching as octaves apart; where two settings act alike when they are near."""
        out = []
        for name in self.names:
            if name == PREFIX:
                out.append(CACHING_OCTAVES * (configuration.get(name) is not False))
            else:
                out.append(math.log2(configuration.integer(name) or _UNSET.get(name, self.ranges[name][1])))
        return tuple(out)

    def all(self, baseline: Configuration) -> Iterator[Configuration]:
        """Every coherent point of the lattice over `baseline`, in a fixed order; empty when nothing is tuned."""
        if not self.names:
            return
        axes: list[tuple[Value, ...]] = [self.lattices[n] if n != PREFIX else (False, True) for n in self.names]
        for values in product(*axes):
            configuration = self.point(baseline, dict(zip(self.names, values, strict=True)))
            if coherent(configuration):
                yield configuration

    def point(self, baseline: Configuration, values: Mapping[str, Value]) -> Configuration:
        """`values` over `baseline`. Caching "on" stays unset where the baseline leaves it unset: on is vLLM V1's
        default, and a restart for a flag that changes nothing would be a wasted trial."""
        changes: dict[str, object] = dict(values)
        if changes.get(PREFIX) is True and baseline.get(PREFIX) is None:
            changes[PREFIX] = None
        return baseline.with_(changes)


def coherent(configuration: Configuration) -> bool:
    """vLLM refuses to start with max_num_batched_tokens < max_num_seqs."""
    seqs, tokens = configuration.integer("max_num_seqs"), configuration.integer("max_num_batched_tokens")
    return seqs is None or tokens is None or tokens >= seqs
