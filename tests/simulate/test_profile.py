"""Profiles: what is written is read again, what is wrong is named, and loads follow the numbers they were made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.errors import InputError
from trimtab.observe.observation import Histogram
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.lengths import Lengths
from trimtab.simulate.profile import HeldOut, LoadModel, Profile, SharedPrefix, Trace, load_profile, save_profile


def profile(**workload: Any) -> Profile:
    given = {
        "requests_per_second": 4.0,
        "prompt_tokens": Lengths.of(range(10, 500)),
        "output_tokens": Lengths.of(range(5, 205)),
        **workload,
    }
    return Profile(
        engine=EngineConfig(2588, max_num_seqs=64),
        times=StepTimes(0.02, 1e-5, 0.0, 1e-4, 1e-8),
        times_stderr={"fixed": 0.001},
        heldout={"ttft_mean_seconds": HeldOut(measured=2.0, predicted=2.2)},
        workload=LoadModel(**given),
    )


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    made = profile(shared_prefix=SharedPrefix(share=0.5, tokens=64))
    save_profile(made, tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == made
    assert made.heldout["ttft_mean_seconds"].error == pytest.approx(0.1)


def test_a_coefficient_that_is_not_named_is_zero() -> None:
    read = Profile.model_validate({**profile().model_dump(), "times": {"fixed": 0.01}})
    assert read.times == StepTimes(0.01, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        (("engine", "num_gpu_blocks"), 1, "num_gpu_blocks"),
        (("engine", "max_seqs"), 1, "engine.max_seqs"),
        (("times", "fixed"), -1.0, "fixed"),
        (("times", "per_token"), 1.0, "times.per_token"),
        (("workload", "requests_per_second"), 0, "workload.requests_per_second"),
        (("workload", "prompt_tokens", "shares"), [0.0, 0.5], "workload.prompt_tokens"),
        (("workload", "arrivals"), "trace", "workload"),
        (("version",), 2, "version"),
        (("colour",), 1, "colour"),
    ],
)
def test_an_error_names_file_and_field(tmp_path: Path, place: tuple[str, ...], value: Any, named: str) -> None:
    data = json.loads(profile().model_dump_json())
    inner = data
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    file = tmp_path / "p.json"
    file.write_text(json.dumps(data))
    with pytest.raises(InputError) as caught:
        load_profile(file)
    assert caught.value.field.endswith(named) and str(file) in caught.value.field


@pytest.mark.parametrize("text", ["", "{", "[]", "\udcff"])
def test_what_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "p.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError):
        load_profile(file)
    with pytest.raises(InputError, match="cannot be read"):
        load_profile(tmp_path / "absent.json")


def test_a_load_follows_its_numbers_and_its_seed() -> None:
    made = profile(
        max_tokens=Lengths.fixed(150),
        capped_share=0.25,
        cancel_share=0.3,
        shared_prefix=SharedPrefix(share=0.5, tokens=64),
    )
    load, again, other = made.load(2000, 1), made.load(2000, 1), made.load(2000, 2)
    assert len(load) == pytest.approx(8000, rel=0.03)
    assert load.prompt.mean() == pytest.approx(made.workload.prompt_tokens.mean, rel=0.02)
    assert load.output.mean() == pytest.approx(made.workload.output_tokens.mean, rel=0.02)
    assert (load.max_tokens == load.output).mean() == pytest.approx(0.25, abs=0.02)
    assert (load.max_tokens >= load.output).all()
    assert (load.cancel_tokens > 0).mean() == pytest.approx(0.3, abs=0.02)
    assert (load.cancel_tokens < load.output).all()
    assert (np.diff(load.chunk_start) > 0).mean() == pytest.approx(0.5, abs=0.02)
    assert np.array_equal(load.arrival, again.arrival) and np.array_equal(load.prompt, again.prompt)
    assert not np.array_equal(load.prompt[:100], other.prompt[:100])
    assert len(made.load(2000, 1, scale=2.0)) == pytest.approx(16000, rel=0.03)


def test_bursts_are_burstier_at_the_same_rate() -> None:
    even, bursts = profile().load(2000), profile(arrivals="burst", burst_variation=3.0).load(2000)
    assert len(bursts) == pytest.approx(len(even), rel=0.1)
    gaps = np.diff(bursts.arrival)
    assert gaps.std() / gaps.mean() == pytest.approx(3.0, rel=0.15)


def test_a_trace_is_played_until_the_time_is_over() -> None:
    trace = Trace(arrival_seconds=(0, 1, 2), prompt_tokens=(7, 8, 9), output_tokens=(3, 4, 5), prefix_group=(0, -1, 0),
                  prefix_tokens=(4, 0, 4))  # fmt: skip
    made = profile(arrivals="trace", trace=trace)
    load = made.load(8)
    assert load.arrival.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert load.prompt.tolist() == [7, 8, 9, 7, 8, 9, 7, 8]
    assert np.diff(load.chunk_start).tolist() == [1, 0, 1, 1, 0, 1, 1, 0]
    assert made.load(4, scale=2.0).arrival.tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5]


def test_settings_are_changed_by_name() -> None:
    assert profile().config(max_num_seqs=8).max_num_seqs == 8
    with pytest.raises(InputError, match="max_seqs"):
        profile().config(max_seqs=8)
    with pytest.raises(InputError, match="no request arrives"):
        profile(requests_per_second=1e-6).load(1)


def test_lengths_of_a_histogram_keep_its_mean_and_stay_in_its_buckets() -> None:
    rng = np.random.default_rng(3)
    values = np.maximum(1, rng.lognormal(5, 0.8, 5000)).round()
    bounds = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, float("inf"))
    found = Lengths.of_histogram(
        Histogram(bounds, tuple(float((values <= b).sum()) for b in bounds), float(values.sum()))
    )
    assert found is not None
    assert found.mean == pytest.approx(values.mean(), rel=1e-6)
    for share in (0.1, 0.5, 0.9):
        assert found.quantile(share) == pytest.approx(np.quantile(values, share), rel=0.15)
    assert Lengths.of_histogram(Histogram(bounds, (0.0,) * len(bounds), 0.0)) is None
    drawn = found.draw(rng.random(20_000))
    assert drawn.mean() == pytest.approx(values.mean(), rel=0.03)
