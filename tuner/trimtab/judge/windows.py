"""`Pair`: canary and control over the same minutes; and what makes a sequence of pairs fit for statistics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from trimtab.observe.observation import AVERAGED, CONSTANT, HIGHEST, Histogram, Observation, agreed, merge

#: finished requests per pod, averaged over the arms, that make a window; thinner neighbours are joined
MIN_FINISHED_PER_WINDOW = 8.0


@dataclass(frozen=True)
class Pair:
    """One window (unix seconds). `control` is the combined Observation of the control pods, `canary` of the
    canary's. `controls`: of each control pod, in the order of all windows; empty where they are not told apart."""

    start: float
    end: float
    canary: Observation
    control: Observation
    controls: tuple[Observation, ...] = ()


def join(first: Observation, second: Observation) -> Observation:
    """The same pods over two windows that follow each other. Unknown in one is unknown in both, but for histograms.

    A window without requests may have no histogram, so the known one stands for both.
    """
    seconds = first.window_seconds + second.window_seconds
    out: dict[str, object] = {"pods": max(first.pods, second.pods), "window_seconds": seconds}
    for name in (f.name for f in fields(Observation) if f.name not in out):
        a, b = getattr(first, name), getattr(second, name)
        if isinstance(a, Histogram) or isinstance(b, Histogram):
            out[name] = merge([a, b])
        elif a is None or b is None:
            out[name] = None
        elif name in CONSTANT:
            out[name] = agreed((a, b))
        elif name in HIGHEST:
            out[name] = max(a, b)
        elif name in AVERAGED:
            out[name] = (a * first.window_seconds + b * second.window_seconds) / seconds if seconds > 0 else a
        else:
            out[name] = a + b
    return Observation(**out)  # type: ignore[arg-type]


def finished_per_pod(observation: Observation) -> float | None:
    return None if observation.finished is None else observation.finished / max(1, observation.pods)


def known(pair: Pair) -> bool:
    """Whether both arms have what goodput needs. Zero is known; None is not."""
    arms = (pair.canary, pair.control)
    return all(o.useful_tokens is not None and o.finished is not None and o.window_seconds > 0 for o in arms)


def usable(pairs: Iterable[Pair]) -> list[Pair]:
    """Known pairs in order of time, each window once, thin neighbours joined until both arms together have enough
    requests.

    The rule looks at the sum of both arms, never at one: dropping windows in which the canary finished little would
    praise a canary that hangs. What is left over at the end stays out.
    """
    by_time = {(p.start, p.end): p for p in pairs if known(p)}
    out: list[Pair] = []
    growing: Pair | None = None
    for _, pair in sorted(by_time.items()):
        if growing is None:
            growing = pair
        else:
            canary, control = join(growing.canary, pair.canary), join(growing.control, pair.control)
            apart = len(growing.controls) == len(pair.controls)
            each = zip(growing.controls, pair.controls, strict=True) if apart else ()
            growing = Pair(growing.start, pair.end, canary, control, tuple(join(a, b) for a, b in each))
        if _enough(growing):
            out.append(growing)
            growing = None
    return out


def _enough(pair: Pair) -> bool:
    canary, control = finished_per_pod(pair.canary), finished_per_pod(pair.control)
    return canary is not None and control is not None and (canary + control) / 2 >= MIN_FINISHED_PER_WINDOW
