"""Before the restart: what is simulated first, when that is believed, and beside random search on a world that the
simulator does not quite know."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace

import numpy as np
import pytest

from simulated_worlds import profile
from trimtab.engine.settings import Configuration
from trimtab.search.candidate import Outcome, Proposal
from trimtab.search.foretell import Oracle
from trimtab.search.posterior import Foretold, Seen, beliefs
from trimtab.search.predict import Simulated
from trimtab.search.prospects import prospects
from trimtab.search.space import Space
from trimtab.search.stakes import Stakes
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


# --- a simulator among the hypotheses ---------------------------------------------------------------------------------
PLACES = [(4.0,), (6.0,), (8.0,)]
HERE = (5.0,)


def told(*scores: float, trials: tuple[float, ...] = (), **more: object) -> Foretold:
    """One world."""
    return Foretold(np.array([scores]).T, np.array(trials).reshape(-1, 1), HERE, **more)  # type: ignore[arg-type]


def means(foretold: Foretold | None, *seen: Seen) -> list[float]:
    found = beliefs(seen, PLACES, HERE, foretold=foretold)
    return [found.mean(i) for i in range(len(PLACES))]


def test_before_any_trial_the_simulator_is_believed_but_not_blindly() -> None:
    low, high, none = means(told(-0.3, 0.4, 0.0))
    assert -0.3 < low < -0.2 and 0.3 < high < 0.4 and abs(none) < 0.05
    found = beliefs([], PLACES, HERE, foretold=told(-0.3, 0.4, 0.0))
    assert found.deviation(1) > 0.05 and found.weights.sum() == pytest.approx(1.0)


def test_a_trial_that_agrees_makes_it_surer_and_one_that_does_not_makes_it_weigh_nothing() -> None:
    right, wrong = (Seen((6.0,), HERE, d, 0.03) for d in (0.38, -0.5))
    foretold = told(-0.3, 0.4, 0.3, trials=(0.4,))
    sure, lost = (beliefs([s], PLACES, HERE, foretold=foretold) for s in (right, wrong))
    assert sure.deviation(2) < beliefs([], PLACES, HERE, foretold=told(-0.3, 0.4, 0.3)).deviation(2)
    weight = {name: b.weights[b.worlds >= 0].sum() for name, b in (("sure", sure), ("lost", lost))}
    assert weight["sure"] > 0.9 > 0.3 > weight["lost"]
    assert lost.mean(1) < -0.2


def test_of_two_worlds_the_one_that_foretold_the_trials_is_believed() -> None:
    candidates = np.array([[-0.3, 0.3], [0.4, -0.4], [0.3, -0.2]])
    both = Foretold(candidates, np.array([[0.4, -0.4]]), HERE)
    found = beliefs([Seen((6.0,), HERE, -0.36, 0.03)], PLACES, HERE, foretold=both)
    first, second = (found.weights[found.worlds == w].sum() for w in (0, 1))
    assert second > 20 * first
    assert found.mean(0) > 0.1 and found.mean(2) < -0.1


def test_an_error_at_a_hopeless_origin_says_nothing_of_the_others() -> None:
    """All that is compared with it is off by the same: the simulator is still believed of the rest."""
    trials = [Seen((6.0,), HERE, 0.9, 0.03), Seen((8.0,), HERE, 0.8, 0.03)]
    away = {"trials": (0.4, 0.3)}
    plain, hopeless = (
        beliefs(trials, [(6.0,), (8.0,)], (6.0,), foretold=told(0.0, -0.1, hopeless=h, **away)) for h in (0.0, 1.0)
    )
    assert hopeless.weights[hopeless.worlds >= 0].sum() > plain.weights[plain.worlds >= 0].sum()
    assert hopeless.mean(1) == pytest.approx(-0.1, abs=0.03)


# --- what is proposed -------------------------------------------------------------------------------------------------
def test_the_setting_that_helps_comes_first_and_what_harms_last() -> None:
    known = profile("slots")
    base = as_found(known)
    found = prospects(
        [c for c in SPACE.all(base) if c != base],
        [],
        base,
        SPACE,
        oracle=Oracle(simulated(known, limits=Limits()), SPACE),
    )
    assert int(found[0].configuration["max_num_seqs"]) >= 48
    assert str(found[0]).startswith("simulated +")
    assert int(found[-1].configuration["max_num_seqs"]) == 8


def test_nothing_is_proposed_where_arrivals_bind() -> None:
    known = profile("arrivals")
    study = Study(None, "s", SPACE)
    assert study.propose([], as_found(known), (), Oracle(simulated(known), SPACE), stakes=Stakes(), room=0.0) is None
    assert "nothing to gain" in study.stopped and "simulated" in study.stopped


def test_what_a_person_asks_for_is_tried_first_whatever_the_simulator_says() -> None:
    known = profile("arrivals")
    asked = Proposal(as_found(known).with_({"max_num_seqs": 8}), "listed", asked=True)
    assert Study(None, "s", SPACE).propose([], as_found(known), [asked], Oracle(simulated(known), SPACE)) == asked


def test_without_a_profile_nothing_changes() -> None:
    base = Configuration.of(max_num_seqs=16, enable_prefix_caching=True)
    assert Study(None, "s", SPACE).propose([], base) == Study(None, "s", SPACE).propose([], base, (), None)


def test_a_trial_that_disproves_the_simulator_changes_what_is_proposed_next() -> None:
    known, base = profile("slots"), as_found(profile("slots"))
    oracle, study = Oracle(simulated(known), SPACE), Study(None, "s", SPACE)
    first = study.propose([], base, (), oracle, stakes=Stakes())
    assert first is not None
    worse = Outcome("t0", first.configuration, -0.5, control=base, deviation=0.03)
    second = study.propose([worse], base, (), oracle, stakes=Stakes())
    assert second is None or second.configuration != first.configuration
    every = [c for c in SPACE.all(base) if c != base]
    before, after = ({p.configuration: p.mean for p in prospects(every, h, base, SPACE, oracle=oracle)}
                     for h in ([], [worse]))  # fmt: skip
    assert all(after[c] < before[c] for c in every if int(c["max_num_seqs"]) == 128)


def test_near_a_crash_nothing_is_tried_soon() -> None:
    known, base = profile("slots"), as_found(profile("slots"))
    oracle = Oracle(simulated(known), SPACE)
    every = [c for c in SPACE.all(base) if c != base]
    crash = Outcome("t0", base.with_({"max_num_seqs": 128}), None, infeasible=True, control=base)
    before, after = ({p.configuration: p.gain for p in prospects(every, h, base, SPACE, oracle=oracle)}
                     for h in ([], [crash]))  # fmt: skip
    near = base.with_({"max_num_seqs": 96})
    assert after[near] < 0.5 * before[near]


def test_what_a_guardrail_would_end_promises_little() -> None:
    known, base = profile("slots"), as_found(profile("slots"))
    every = [c for c in SPACE.all(base) if c != base]
    free, watched = (Oracle(simulated(known, limits=Limits()), SPACE, (r, math.inf)) for r in (math.inf, 1.05))
    few = base.with_({"max_num_seqs": 8})
    never, ended = (
        {p.configuration: p.ended for p in prospects(every, [], base, SPACE, oracle=o)} for o in (free, watched)
    )
    assert never[few] == 0.0 and ended[few] > 0.4


def test_near_what_a_guardrail_ended_another_end_is_feared_and_elsewhere_nothing_is_learned() -> None:
    """It was ended before it was measured: that says nothing of goodput, least of all far away."""
    space = Space({"max_num_seqs": (8, 512)}, tune_prefix_caching=False)
    base = Configuration.of(max_num_seqs=64)
    every = [c for c in space.all(base) if c != base]
    breach = Outcome("t0", Configuration.of(max_num_seqs=16), -1.0, control=base, deviation=0.3, breached=True)
    before, after = ({int(p.configuration["max_num_seqs"]): p for p in prospects(every, h, base, space)}
                     for h in ([], [breach]))  # fmt: skip
    assert after[12].gain < 0.3 * before[12].gain and after[12].ended > 0.8
    assert after[256].gain == pytest.approx(before[256].gain, rel=0.01)


def test_the_model_does_not_speak_of_what_it_would_refuse() -> None:
    model = simulated(profile("slots"))
    assert not model.knows(Configuration.of(max_num_seqs=4096))
    assert model.predict([Configuration.of(max_new_tokens=20)], 1)[0].goodputs[0] != 0.0
    oracle = Oracle(model, SPACE)
    foretold, ends = oracle.foretell([Configuration.of(max_num_seqs=4096)], [], Configuration.of())
    assert not foretold.candidates.any() and not ends.any()


# --- beside random search ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["slots", "kv"])
def test_a_search_with_a_simulator_needs_fewer_trials_than_random_search(name: str) -> None:
    """The live target has other step times (25% off, each its own way) and other requests; trials are 4% off."""
    known, base = profile(name), as_found(profile(name))
    times = replace(known.times, fixed=known.times.fixed * 1.25, per_prefill_token=known.times.per_prefill_token * 0.8)
    live = simulated(known.model_copy(update={"times": times}), seed=500)
    model = simulated(known)
    every = list(SPACE.all(base))
    every += [] if base in every else [base]
    truth = {c.key(): p.scores[0] for c, p in zip(every, live.predict(every, 1), strict=True)}
    best = max(truth.values())
    foretold, drawn = [], []
    for seed in range(6):
        noise = random.Random(seed)
        study, oracle = Study(None, "s", SPACE, seed), Oracle(model, SPACE)
        history: list[Outcome] = []
        runs = base
        while best - truth[runs.key()] > 0.05 and len(history) < len(every):
            proposal = study.propose(history, runs, (), oracle, stakes=Stakes())
            if proposal is None:
                break
            score = truth[proposal.configuration.key()] - truth[runs.key()] + noise.gauss(0, 0.04)
            history.append(Outcome(f"t{len(history)}", proposal.configuration, score, control=runs))
            runs = proposal.configuration if score > 0.08 else runs
        assert best - truth[runs.key()] <= 0.1, "it stops only where little is to be had"
        foretold.append(len(history))
        order = random.Random(seed).sample(every, len(every))
        drawn.append(next((i for i, c in enumerate(order, 1) if best - truth[c.key()] <= 0.05), math.inf))
    print("trials, simulated first and random:", foretold, drawn)
    assert statistics.mean(foretold) <= statistics.mean(drawn)
