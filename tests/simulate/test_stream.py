"""A load in parts gives the figures of the whole, in memory that does not grow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as hs
from tests.simulate.random_loads import TIMES, configs, loads

from trimtab.errors import InputError
from trimtab.simulate.config import EngineConfig
from trimtab.simulate.layout import Store
from trimtab.simulate.simulator import simulate
from trimtab.simulate.stream import simulate_stream
from trimtab.simulate.summary import Limits, Quantiles, summarise
from trimtab.simulate.workload import Workload

LIMITS = Limits(0.5, 0.03)


@settings(max_examples=150)
@given(loads(timers=True), configs(), hs.integers(1, 12))
def test_parts_give_the_figures_of_the_whole(load: Workload, config: EngineConfig, size: int) -> None:
    parts = [load.part(k, min(k + size, len(load))) for k in range(0, len(load), size)]
    whole = summarise(simulate(load, config, TIMES), config, LIMITS)
    found = simulate_stream(parts, config, TIMES, LIMITS)
    for name in ("ttft", "tpot", "e2e"):
        compare(getattr(found, name), getattr(whole, name))
    same = {name: getattr(whole, name) for name in ("ttft", "tpot", "e2e")}
    assert replace(found, **same) == whole


def compare(found: Quantiles, exact: Quantiles) -> None:
    if exact.mean is None:
        assert found == exact
        return
    assert found.mean == pytest.approx(exact.mean, rel=1e-9)


def test_quantiles_are_within_half_a_bucket() -> None:
    load = next(endless(20_000))
    config = EngineConfig(4_000, 32, 512)
    whole = summarise(simulate(load, config, TIMES), config, LIMITS)
    found = simulate_stream([load], config, TIMES, LIMITS)
    for name in ("ttft", "tpot", "e2e"):
        for q in ("p50", "p90", "p99"):
            assert getattr(getattr(found, name), q) == pytest.approx(getattr(getattr(whole, name), q), rel=0.004)


def endless(size: int) -> Iterator[Workload]:
    """Requests of conversations that come and go: names of shared beginnings are never the same for long."""
    rng = np.random.default_rng(3)
    begin, name = 0.0, 0
    while True:
        arrival = begin + np.cumsum(rng.exponential(0.03, size))
        begin = arrival[-1]
        name += size
        yield Workload.of(
            arrival, rng.integers(40, 100, size, dtype=np.int32), rng.integers(1, 20, size, dtype=np.int32),
            chunks=[[int(k)] for k in name + rng.integers(0, size, size)], chunk_tokens=[32] * size,
            patience=np.where(rng.random(size) < 0.1, 1.0, np.inf),
        )  # fmt: skip


def test_memory_is_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    grow = Store.grow

    def counted(self: Store, *args: object) -> None:
        grow(self, *args)  # type: ignore[arg-type]
        sizes.append(self.state.m.nbytes + self.state.f.nbytes)

    monkeypatch.setattr(Store, "grow", counted)
    parts = endless(1_000)
    simulate_stream((next(parts) for _ in range(10)), EngineConfig(500, 32, 512), TIMES)
    after_ten = len(sizes)
    sizes.clear()
    parts = endless(1_000)
    simulate_stream((next(parts) for _ in range(100)), EngineConfig(500, 32, 512), TIMES)
    assert len(sizes) <= after_ten + 1


def test_parts_out_of_order_are_named() -> None:
    late, early = Workload.of([5.0, 6.0], [8, 8], [2, 2]), Workload.of([5.5], [8], [2])
    with pytest.raises(InputError) as caught:
        simulate_stream([late, early], EngineConfig(50), TIMES)
    assert caught.value.field == "arrival"
