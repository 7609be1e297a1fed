from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.engine.settings import Configuration
from trimtab.errors import InputError
from trimtab.search.space import Space, lattice

SPACE = Space({"max_num_seqs": (4, 512)})


def test_the_lattice_is_geometric_with_both_ends() -> None:
    assert lattice(4, 512) == (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
    assert lattice(5, 100) == (5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 100)
    assert lattice(7, 7) == (7,)


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_every_lattice_is_ascending_and_inside(a: int, b: int) -> None:
    low, high = sorted((a, b))
    points = lattice(low, high)
    assert points[0] == low and points[-1] == high
    assert list(points) == sorted(set(points))


def test_close_values_are_one_cell() -> None:
    near, far = Configuration.of(max_num_seqs=62), Configuration.of(max_num_seqs=96)
    assert SPACE.cell(near) == SPACE.cell(Configuration.of(max_num_seqs=64)) != SPACE.cell(far)
    assert SPACE.cell(near) != SPACE.cell(near.with_({"max_num_batched_tokens": 4096}))


def test_contains() -> None:
    assert SPACE.contains(Configuration.of(max_num_seqs=4, enable_prefix_caching=True))
    assert SPACE.contains(Configuration.of())
    assert not SPACE.contains(Configuration.of(max_num_seqs=513))
    assert not SPACE.contains(Configuration.of(max_num_seqs=256, max_num_batched_tokens=128))


def test_all_keeps_what_is_not_tuned_and_skips_what_vllm_refuses() -> None:
    baseline = Configuration.of(max_num_seqs=8, max_num_batched_tokens=64, max_new_tokens=100)
    points = list(SPACE.all(baseline))
    assert all(p["max_new_tokens"] == 100 and p["max_num_batched_tokens"] == 64 for p in points)
    assert max(int(p["max_num_seqs"]) for p in points) == 64
    assert len(points) == len({p.key() for p in points})


def test_on_stays_unset_where_the_baseline_leaves_it_unset() -> None:
    states = {p.get("enable_prefix_caching") for p in SPACE.all(Configuration.of(max_num_seqs=8))}
    assert states == {None, False}


def test_bad_ranges_name_the_setting() -> None:
    with pytest.raises(InputError, match="max_num_seqs"):
        Space({"max_num_seqs": (9, 3)})
    with pytest.raises(InputError, match="enable_prefix_caching"):
        Space({"enable_prefix_caching": (1, 2)})
