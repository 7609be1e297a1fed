"""Without a simulator: noise, costs, flat targets, other loads, other starts."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Histogram, Observation
from trimtab.search.candidate import Outcome, Proposal, levels
from trimtab.search.context import RATE, SEEN, drift, of_another_target, place, workload_of
from trimtab.search.fits import capacity
from trimtab.search.prospects import prospects
from trimtab.search.space import Space
from trimtab.search.stakes import Stakes, room_of
from trimtab.search.study import Study

SPACE = Space({"max_num_seqs": (4, 512)}, tune_prefix_caching=False)
BASE = Configuration.of(max_num_seqs=256)
INF = float("inf")


def at(seqs: int) -> Configuration:
    return Configuration.of(max_num_seqs=seqs)


ALL = [c for c in SPACE.all(BASE) if c != BASE]


def tried(seqs: int, score: float, deviation: float = 0.03, **more: object) -> Outcome:
    return Outcome(f"t{seqs}", at(seqs), score, control=BASE, deviation=deviation, **more)  # type: ignore[arg-type]


def searched(noise: float, gain: float, seed: int) -> tuple[int, Configuration]:
    """Trials until the search ends, and what runs then; the best is at 48 sequences, `gain` above 256."""
    rng, runs, history = random.Random(seed), BASE, list[Outcome]()

    def truth(c: Configuration) -> float:
        return -gain * abs(math.log2(int(c["max_num_seqs"]) / 48)) / math.log2(256 / 48)

    study = Study(None, "s", SPACE)
    while (found := study.propose(history, runs, stakes=Stakes())) is not None:
        score = truth(found.configuration) - truth(runs) + rng.gauss(0, noise)
        history.append(Outcome(f"t{len(history)}", found.configuration, score, control=runs, deviation=noise))
        runs = found.configuration if score > max(0.03, 2 * noise) else runs
    assert study.stopped.startswith(("nothing to gain", "every configuration"))
    return len(history), runs


def test_where_nothing_helps_the_search_ends_after_a_few_trials() -> None:
    lengths = [searched(0.03, 0.0, seed)[0] for seed in range(5)]
    assert max(lengths) <= 6, lengths


def test_where_much_is_to_be_had_it_is_found() -> None:
    for seed in range(4):
        trials, runs = searched(0.03, 0.5, seed)
        assert 24 <= int(runs["max_num_seqs"]) <= 96 and trials <= 10


def test_with_no_room_left_nothing_is_tried() -> None:
    study = Study(None, "s", SPACE)
    assert study.propose([], BASE, stakes=Stakes(), room=0.01) is None
    assert study.stopped.startswith("nothing to gain: of ")
    assert study.propose([], BASE, stakes=Stakes(), room=0.5) is not None


def test_a_dear_restart_for_a_short_time_is_not_worth_it() -> None:
    history = [tried(128, 0.0), tried(64, 0.01)]
    dear = Stakes(horizon_hours=0.5, start_seconds=1800)
    assert Study(None, "s", SPACE).propose(history, BASE, stakes=dear) is None
    cheap = [p.net for p in prospects(ALL, history, BASE, SPACE, stakes=Stakes())]
    assert max(cheap) > max(p.net for p in prospects(ALL, history, BASE, SPACE, stakes=dear))


def test_a_guess_of_the_diagnosis_is_tried_first_but_is_not_believed_blindly() -> None:
    guess = Proposal(at(48), "KV arithmetic")
    first = Study(None, "s", SPACE).propose([], BASE, [guess], stakes=Stakes())
    assert first is not None and first.configuration == at(48) and first.origin.startswith("KV arithmetic")
    bad = [tried(48, -0.4), tried(64, -0.3)]
    then = Study(None, "s", SPACE).propose(bad, BASE, [guess], stakes=Stakes())
    assert then is None or int(then.configuration["max_num_seqs"]) > 64


def test_a_lucky_window_counts_less_than_a_long_measurement() -> None:
    by = {o: {p.configuration: p.mean for p in prospects(ALL, [tried(64, 0.3, o)], BASE, SPACE)} for o in (0.02, 0.4)}
    assert by[0.02][at(48)] > 2 * by[0.4][at(48)] > 0


def test_two_measurements_are_weighted_by_their_variances() -> None:
    (level,) = levels([tried(64, 0.3, 0.1), tried(64, 0.0, 0.05)])
    assert level.value == pytest.approx(0.06) and level.deviation == pytest.approx(0.0447, abs=1e-3)


def test_no_leap_is_made_beyond_what_serves_while_nearer_ones_are_worth_it() -> None:
    first = Study(None, "s", SPACE).propose([], BASE, stakes=Stakes())
    assert first is not None and int(first.configuration["max_num_seqs"]) >= 64


def test_near_a_crash_the_gain_is_discounted() -> None:
    crash = Outcome("c", at(512), infeasible=True, control=BASE)
    before, after = ({p.configuration: p for p in prospects(ALL, h, BASE, SPACE)} for h in ([], [crash]))
    assert after[at(384)].crash > 0.5 > before[at(384)].crash
    assert after[at(16)].crash < 0.1


def test_another_start_comes_before_anything_else_but_not_for_ever() -> None:
    asked = Proposal(at(32), "listed", asked=True)
    once = [tried(64, 0.05, inconclusive=True, again=True)]
    study = Study(None, "s", SPACE)
    again = study.propose(once, BASE, [asked])
    assert again is not None and again.configuration == at(64) and "another start" in again.origin
    other = study.propose(once * 3, BASE, [asked])
    assert other is not None and other.configuration == at(32)
    promoted = study.propose(once, at(64), [asked])
    assert promoted is not None and promoted.configuration == at(32)


def test_a_step_that_leaves_no_room_for_the_longest_request_is_not_tried() -> None:
    space = Space({"max_num_batched_tokens": (1024, 16384)}, tune_prefix_caching=False)
    base = Configuration.of(max_num_batched_tokens=2048)
    fits = capacity(20_000.0, 16_384.0, base)
    assert fits is not None and fits.starts(base.with_({"max_num_batched_tokens": 4096}))
    assert not fits.starts(base.with_({"max_num_batched_tokens": 8192}))
    history, study = list[Outcome](), Study(None, "s", space)
    while (found := study.propose(history, base, fits=fits)) is not None:
        assert int(found.configuration["max_num_batched_tokens"]) <= 5664
        history.append(Outcome(f"t{len(history)}", found.configuration, 0.0, control=base))
    assert history and study.stopped.startswith("every configuration")
    asked = study.propose([], base, [Proposal(base.with_({"max_num_batched_tokens": 8192}), "", asked=True)], fits=fits)
    assert asked is not None, "a person may know better"
    assert capacity(None, 16_384.0, base) is None


# --- loads ------------------------------------------------------------------------------------------------------------
def load(rate: float, requests: float = 10_000) -> dict[str, float]:
    return {RATE: rate, "prompt_tokens_mean": 500.0, "output_tokens_mean": 200.0, SEEN: requests}


def test_a_trial_teaches_less_of_another_load() -> None:
    now = place(load(4.0))
    means = []
    for rate in (4.0, 8.0, 64.0):
        seen = [tried(64, 0.3, context=place(load(rate)))]
        means.append(next(p.mean for p in prospects(ALL, seen, BASE, SPACE, context=now) if p.configuration == at(48)))
    assert means[0] > means[1] > means[2] + 0.05


def test_an_unknown_load_counts_as_equal_and_another_target_does_not() -> None:
    now = place(load(4.0))
    same, other = (
        next(p.mean for p in prospects(ALL, [tried(64, 0.3, context=c)], BASE, SPACE, context=now))
        for c in ((), of_another_target(now))
    )
    assert same != other


def test_drift_is_a_change_beyond_the_threshold_and_beyond_doubt() -> None:
    assert "requests_per_second_per_pod went from 4 to 9" in drift(load(4.0), load(9.0), 100.0)
    assert drift(load(4.0), load(7.0), 100.0) == "" == drift(load(4.0), load(9.0, requests=20), 100.0)
    assert drift(load(8.0), load(3.0), 100.0), "halved is as far as doubled"
    assert drift({}, load(4.0), 10.0) == "" == drift(load(4.0), {}, 10.0)


def test_the_load_is_told_per_pod() -> None:
    seen = Observation(2, 100.0, requests=800.0)
    assert workload_of(seen)[RATE] == pytest.approx(4.0)
    assert workload_of(None) == {}


def test_room_is_known_only_where_nothing_waits() -> None:
    ttft = Histogram((0.5, 1.0, INF), (90.0, 100.0, 100.0), 40.0)
    calm = Observation(1, 100.0, running=10.0, waiting=0.0, preemptions=0.0, ttft_seconds=ttft)
    assert room_of(calm, 0.5, None) == pytest.approx(-math.log(0.9), abs=0.01)
    uncached = room_of(replace(calm, prefix_queries=0.0), 0.5, None)
    assert uncached == pytest.approx(-math.log(0.9) + 0.15, abs=0.01), "caching may take all of the prefill away"
    assert (
        room_of(Observation(1, 100.0, running=10.0, waiting=5.0, preemptions=0.0, ttft_seconds=ttft), 0.5, None) is None
    )
    assert room_of(Observation(1, 100.0, ttft_seconds=ttft), 0.5, None) is None


# --- memory -----------------------------------------------------------------------------------------------------------
def test_like_targets_teach_each_other_through_one_folder(tmp_path: Path) -> None:
    first = Study(str(tmp_path / "a.journal"), "a", SPACE, target="model on gpu")
    first.propose([tried(64, 0.3)], BASE)
    like = Study(str(tmp_path / "b.journal"), "b", SPACE, target="model on gpu")
    like.propose([], BASE)
    (taught,) = like.kin()
    assert taught.score == 0.3 and taught.name == "a/t64" and taught.deviation == 0.03
    assert Study(str(tmp_path / "c.journal"), "c", SPACE, target="another").kin() == []
    assert Study(str(tmp_path / "d.journal"), "d", SPACE).kin() == []


def test_what_is_learned_in_a_namespace_stays_there(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    Study(url, "a/llm", SPACE, target="x").propose([tried(64, 0.3)], BASE)
    assert len(Study(url, "a/other", SPACE, target="x").kin()) == 1
    assert Study(url, "b/llm", SPACE, target="x").kin() == []


def test_a_stored_trial_of_another_load_does_not_forbid_to_look_again(tmp_path: Path) -> None:
    space = Space({"max_num_seqs": (64, 96)}, tune_prefix_caching=False)  # 256 counts as 96
    path, then = str(tmp_path / "a.journal"), place(load(4.0))
    Study(path, "a", space).propose([tried(64, -0.3, context=then)], BASE, context=then)
    assert Study(path, "a", space).propose([], BASE, context=place(load(4.4))) is None
    assert Study(path, "a", space).propose([], BASE, context=place(load(9.0))) is not None


def test_a_broken_journal_beside_ours_teaches_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.journal").write_bytes(b"garbage\n")
    assert Study(str(tmp_path / "b.journal"), "b", SPACE, target="x").kin() == []
