"""One suite for every sampler: what the search relies on, whatever is behind the interface."""

from __future__ import annotations

import importlib.util
import math

import pytest

from trimtab.engine.settings import Configuration
from trimtab.errors import InputError
from trimtab.search.method import NAMES, Sampler, sampler
from trimtab.search.sampling import Point
from trimtab.search.space import Space

TORCH = importlib.util.find_spec("torch") is not None
SPACE = Space({"max_num_seqs": (4, 512), "max_num_batched_tokens": (1024, 8192)})
BASE = Configuration.of(max_num_seqs=64, max_num_batched_tokens=2048, enable_prefix_caching=False)
ALL = tuple(c for c in SPACE.all(BASE) if c != BASE)


@pytest.fixture(params=[n for n in NAMES if TORCH or n != "GP"])
def method(request: pytest.FixtureRequest) -> Sampler:
    return sampler(request.param)


def worth(c: Configuration) -> float | None:
    """Best at 32 sequences with caching; crashes above 6000 tokens."""
    seqs, tokens = int(c["max_num_seqs"]), int(c["max_num_batched_tokens"])
    return None if tokens > 6000 else 0.2 * bool(c["enable_prefix_caching"]) - 0.1 * abs(math.log2(seqs / 32))


def played(method: Sampler, trials: int, seed: int = 0) -> list[Configuration]:
    points, out = [Point(BASE, 0.0)], list[Configuration]()
    for i in range(trials):
        found = method.draw(points, [c for c in ALL if c not in out], SPACE, BASE, seed + i)
        assert found is not None
        out.append(found)
        points.append(Point(found, worth(found)))
    return out


def test_it_draws_what_is_allowed_and_nothing_twice(method: Sampler) -> None:
    drawn = played(method, 12)
    assert len(set(drawn)) == 12 and set(drawn) <= set(ALL)


def test_nothing_allowed_or_nothing_to_tune_gives_nothing(method: Sampler) -> None:
    assert method.draw([], [], SPACE, BASE, 0) is None
    assert method.draw([], [BASE], Space({}, tune_prefix_caching=False), BASE, 0) is None


def test_equal_input_gives_equal_answers(method: Sampler) -> None:
    assert played(method, 5) == played(sampler(method.name), 5)


def test_the_last_allowed_one_is_found(method: Sampler) -> None:
    points = [Point(BASE, 0.0), *(Point(c, worth(c)) for c in ALL[:6])]
    assert method.draw(points, ALL[-1:], SPACE, BASE, 1) == ALL[-1]


def test_crashes_alone_are_no_obstacle(method: Sampler) -> None:
    crashes = [Point(c, None) for c in ALL[:8]]
    assert method.draw(crashes, ALL[8:], SPACE, BASE, 2) in ALL[8:]


def test_an_unset_baseline_is_no_obstacle(method: Sampler) -> None:
    unset = Configuration.of()
    assert method.draw([Point(unset, 0.0)], list(SPACE.all(unset)), SPACE, unset, 0) is not None


def test_a_space_of_one_setting_is_searched(method: Sampler) -> None:
    narrow = Space({"max_num_seqs": (4, 64)}, tune_prefix_caching=False)
    base = Configuration.of(max_num_seqs=64)
    allowed = [c for c in narrow.all(base) if c != base]
    assert method.draw([Point(base, 0.0)], allowed, narrow, base, 0) in allowed


@pytest.mark.skipif(TORCH, reason="PyTorch is here")
def test_without_pytorch_gp_says_what_to_install() -> None:
    with pytest.raises(InputError, match=r"spec\.search\.sampler.*PyTorch"):
        sampler("GP").draw([], ALL, SPACE, BASE, 0)


def test_an_unknown_sampler_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="Annealing"):
        sampler("Annealing")
