"""Screening by simulation: what is dropped, what comes first, what trials teach; beside random search on a world that
the simulator does not quite know."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace

import pytest

from simulated_worlds import profile
from trimtab.engine.settings import Configuration
from trimtab.search.bias import Lesson, learn
from trimtab.search.candidate import Outcome, Proposal
from trimtab.search.predict import Simulated
from trimtab.search.screen import Screen, _Expected
from trimtab.search.space import Space
from trimtab.search.study import Study
from trimtab.simulate.profile import Profile
from trimtab.simulate.summary import Limits

SPACE = Space({"max_num_seqs": (8, 128)})
LIMITS = Limits(5.0, 0.2)
WEIGHTS = (0.1, 0.1)


def simulated(known: Profile, seed: int = 0, limits: Limits = LIMITS) -> Simulated:
    return Simulated(known, limits, latency_weights=WEIGHTS, requests=200, least_seconds=15.0, seed=seed)


def as_found(known: Profile) -> Configuration:
    return Configuration.of(max_num_seqs=known.engine.max_num_seqs, enable_prefix_caching=True)


# --- the errors of the model ------------------------------------------------------------------------------------------
def test_without_trials_the_bias_is_none_and_grows_uncertain_with_distance() -> None:
    bias = learn([], (5.0, 0.0))
    near, far = bias.difference((6.0, 0.0), (5.0, 0.0)), bias.difference((11.0, 0.0), (5.0, 0.0))
    assert near[0] == far[0] == 0.0 and 0 < near[1] < far[1]
    assert bias.difference((5.0, 0.0), (5.0, 0.0)) == (0.0, 0.0)


def test_a_trial_corrects_its_neighbourhood_but_not_by_all_of_its_error() -> None:
    bias = learn([Lesson((8.0, 0.0), -0.2)], (5.0, 0.0))
    here, beside, far = (bias.difference((x, 0.0), (5.0, 0.0))[0] for x in (8.0, 9.0, 20.0))
    assert -0.2 < here < -0.1 and here <= beside < far < 0.01


def test_one_odd_trial_is_cut_and_does_not_ruin_the_model() -> None:
    mild, odd = (learn([Lesson((8.0, 0.0), e)], (5.0, 0.0)) for e in (-0.6, -9.0))
    assert odd.difference((8.0, 0.0), (5.0, 0.0)) == pytest.approx(mild.difference((8.0, 0.0), (5.0, 0.0)), abs=0.15)


def test_trials_that_agree_with_the_model_narrow_it_and_others_widen_it() -> None:
    places = [(6.0, 0.0), (7.5, 0.0), (9.0, 0.0)]
    good, none, bad = (learn([Lesson(p, e) for p in places], (5.0, 0.0)).error for e in (0.0, 0.15, 0.6))
    assert good < none < bad


def test_an_error_at_a_hopeless_origin_says_nothing_of_the_others() -> None:
    """All that is compared with it is off by the same: two others compare as before."""
    trials = [Lesson((7.0, 0.0), -0.5), Lesson((9.0, 0.0), -0.5)]
    others = (8.0, 0.0), (9.0, 0.0)
    plain, cliff = learn(trials, (5.0, 0.0)), learn(trials, (5.0, 0.0), cliff=1.0)
    assert cliff.error < plain.error
    assert cliff.difference(*others)[0] == pytest.approx(0.0, abs=0.02)
    assert cliff.difference(*others)[1] < plain.difference(*others)[1]


# --- forecasts --------------------------------------------------------------------------------------------------------
def test_no_improvement_is_expected_beyond_what_arrives() -> None:
    free = _Expected(0.1, 0.0, 0.2, room=5.0)
    capped = replace(free, room=0.02)
    assert capped.improvement(0.03) == 0.0 < free.improvement(0.03)
    assert replace(capped, latency=0.05).improvement(0.03) == pytest.approx(0.04, abs=0.02)
    assert capped.high == 0.02


def test_the_setting_that_helps_comes_first_and_what_harms_is_dropped() -> None:
    known = profile("slots")
    screen = Screen(simulated(known, limits=Limits()), SPACE, 0.03)
    base = as_found(known)
    kept = screen.best_first(list(SPACE.all(base)), [], base)
    assert int(kept[0].configuration["max_num_seqs"]) >= 48
    dropped = {f.configuration["max_num_seqs"]: f.dropped for f in screen.forecasts if f.dropped}
    assert "not worth a restart" in dropped[8]


def test_nothing_is_proposed_where_arrivals_bind() -> None:
    known = profile("arrivals")
    base = as_found(known)
    screen = Screen(simulated(known), SPACE, 0.03)
    assert Study(None, "s", SPACE).propose([], base, (), screen) is None
    assert screen.forecasts and all(f.dropped for f in screen.forecasts)


def test_what_a_person_asks_for_is_tried_first_whatever_the_simulator_says() -> None:
    known = profile("arrivals")
    asked = Proposal(as_found(known).with_({"max_num_seqs": 8}), "listed", asked=True)
    screen = Screen(simulated(known), SPACE, 0.03)
    assert Study(None, "s", SPACE).propose([], as_found(known), [asked], screen) == asked


def test_without_a_profile_nothing_changes() -> None:
    base = Configuration.of(max_num_seqs=16, enable_prefix_caching=True)
    assert Study(None, "s", SPACE).propose([], base) == Study(None, "s", SPACE).propose([], base, (), None)


def test_a_trial_that_disproves_the_simulator_changes_what_is_proposed_next() -> None:
    known, base = profile("slots"), as_found(profile("slots"))
    screen, study = Screen(simulated(known), SPACE, 0.03), Study(None, "s", SPACE)
    first = study.propose([], base, (), screen)
    assert first is not None
    worse = Outcome("t0", first.configuration, -0.5, control=base)
    promise = {f.configuration.key(): f.mean for f in screen.forecasts}
    second = study.propose([worse], base, (), screen)
    assert second is None or second.configuration != first.configuration
    after = {f.configuration.key(): f.mean for f in screen.forecasts}
    assert all(after[key] < promise[key] for key in after if key in promise and "128" in key)


def test_near_a_crash_nothing_is_tried_soon() -> None:
    known, base = profile("slots"), as_found(profile("slots"))
    screen = Screen(simulated(known), SPACE, 0.03)
    every = list(SPACE.all(base))
    before = {f.configuration.key(): f.promise for f in screen.best_first(every, [], base)}
    crash = Outcome("t0", base.with_({"max_num_seqs": 128}), None, infeasible=True, control=base)
    screen.best_first(every, [crash], base)
    after = {f.configuration.key(): f.promise for f in screen.forecasts}
    near = base.with_({"max_num_seqs": 96}).key()
    assert after[near] < 0.5 * before[near]


def test_the_model_does_not_speak_of_what_it_would_refuse() -> None:
    model = simulated(profile("slots"))
    assert not model.knows(Configuration.of(max_num_seqs=4096))
    assert model.predict([Configuration.of(max_new_tokens=20)], 1)[0].goodputs[0] != 0.0


# --- beside random search ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["slots", "kv"])
def test_screened_search_needs_fewer_trials_than_random_search(name: str) -> None:
    """The live target has other step times (25% off, each its own way) and other requests; trials are 4% off."""
    known, base = profile(name), as_found(profile(name))
    times = replace(known.times, fixed=known.times.fixed * 1.25, per_prefill_token=known.times.per_prefill_token * 0.8)
    live = simulated(known.model_copy(update={"times": times}), seed=500)
    model = simulated(known)
    every = list(SPACE.all(base))
    every += [] if base in every else [base]
    truth = {c.key(): p.scores[0] for c, p in zip(every, live.predict(every, 1), strict=True)}
    best = max(truth.values())
    screened, drawn = [], []
    for seed in range(6):
        noise = random.Random(seed)
        study, screen = Study(None, "s", SPACE, seed), Screen(model, SPACE, 0.03)
        history: list[Outcome] = []
        runs = base
        while best - truth[runs.key()] > 0.05 and len(history) < len(every):
            proposal = study.propose(history, runs, (), screen)
            if proposal is None:
                break
            score = truth[proposal.configuration.key()] - truth[runs.key()] + noise.gauss(0, 0.04)
            history.append(Outcome(f"t{len(history)}", proposal.configuration, score, control=runs))
            runs = proposal.configuration if score > 0.08 else runs
        assert best - truth[runs.key()] <= 0.1, "it stops only where little is to be had"
        screened.append(len(history))
        order = random.Random(seed).sample(every, len(every))
        drawn.append(next((i for i, c in enumerate(order, 1) if best - truth[c.key()] <= 0.05), math.inf))
    print("trials, screened and random:", screened, drawn)
    assert statistics.mean(screened) <= statistics.mean(drawn)
