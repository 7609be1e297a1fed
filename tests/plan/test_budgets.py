"""Limits over all tuners: places, the namespace's restarts, one trial per target; the longest waiting goes first."""

from __future__ import annotations

from builders import NOW
from hypothesis import given
from hypothesis import strategies as st

from trimtab.plan.budgets import Applicant, Crowd, Flight, Limits, Spending, refused, spent

ME = Applicant("me", "ml", "llm", since=100.0, need=3)


def reason(crowd: Crowd, limits: Limits, who: Applicant = ME) -> str:
    block = refused(who, crowd, limits, NOW)
    return "" if block is None else block.reason


def test_one_trial_per_target() -> None:
    assert reason(Crowd([Flight("other", "ml", "llm", "other-1")]), Limits()) == "TargetInTrial"
    assert reason(Crowd([Flight("other", "ml", "x"), Flight("me", "ml", "llm")]), Limits()) == ""


def test_places_are_limited_and_zero_is_no_limit() -> None:
    two = [Flight("a", "x", "1"), Flight("b", "y", "2")]
    assert reason(Crowd(two), Limits(concurrent_trials=2)) == "TooManyTrials"
    assert reason(Crowd(two), Limits(concurrent_trials=3)) == "" and reason(Crowd(two), Limits()) == ""
    twice = [*two, Flight("b", "y", "2", "b-1")]  # its place and its trial are one
    assert reason(Crowd(twice), Limits(concurrent_trials=3)) == ""


def test_the_longest_waiting_goes_first() -> None:
    limits = Limits(concurrent_trials=2)
    one = [Flight("a", "x", "1")]
    assert reason(Crowd(one, {"older": 50.0, "me": 100.0}), limits) == "TooManyTrials"
    assert reason(Crowd(one, {"younger": 150.0}), limits) == ""
    assert reason(Crowd([], {"older": 50.0}), limits) == ""  # two are free


def test_the_namespaces_restarts_count_a_day_and_what_is_in_flight_with_all_it_may_need() -> None:
    old, recent = Spending(NOW - 90_000, 40), Spending(NOW - 100, 4)
    flying = Spending(NOW - 90_000, 1, need=3, open=True)
    assert spent([old, recent, flying], NOW) == 7
    limits = Limits(restarts_per_namespace_per_day=10)
    assert reason(Crowd(spendings=[recent, flying]), limits) == ""
    assert reason(Crowd(spendings=[recent, flying, recent]), limits) == "NamespaceBudgetSpent"
    block = refused(ME, Crowd(spendings=[]), Limits(restarts_per_namespace_per_day=2), NOW)
    assert block is not None and (block.reason, block.hard) == ("NamespaceBudgetTooSmall", True)
    free = Applicant("me", "ml", "llm", 100.0, need=0)  # a policy restarts nothing
    assert reason(Crowd(spendings=[recent] * 9), limits, free) == ""


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=8, unique=True),
    st.integers(1, 4),
    st.lists(st.booleans(), max_size=60),
)
def test_nobody_starves_and_the_limit_holds(since: list[int], limit: int, ends: list[bool]) -> None:
    """All ask in turn; trials end at random. Places never exceed the limit; each gets one at last, in order."""
    waiting = {f"t{n}": float(at) for n, at in enumerate(since)}
    order, flying, served = sorted(waiting, key=waiting.__getitem__), list[str](), list[str]()
    for ended in [*ends, *[True] * 2 * len(since)]:
        if ended and flying:
            flying.pop(0)
        for name in sorted(waiting):
            flights = [Flight(f, "ml", f) for f in flying]
            if not refused(Applicant(name, "ml", name, waiting[name], 1), Crowd(flights, waiting), Limits(limit), NOW):
                flying.append(name)
                served.append(name)
                del waiting[name]
        assert len(flying) <= limit
    assert sorted(served) == sorted(order)
    assert all(abs(served.index(n) - order.index(n)) < limit for n in order)
