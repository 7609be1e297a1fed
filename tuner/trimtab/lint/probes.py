"""Probes: those that kill an engine which is still loading, and those that are missing.

Source: Kubernetes' defaults (period 10 s, 3 failures, no delay); aibrix#2581: liveness (15 s) quicker than readiness
(25 s), so pods were restarted before they left the Service. vLLM's /health needs the loaded model; a hung engine still
answers it.
"""

from __future__ import annotations

from collections.abc import Iterator

from trimtab.lint.finding import Hit, Options, Severity
from trimtab.lint.target import Target, mapping


def _whole(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


def patience_seconds(target: Target, name: str, *, delay: bool = True) -> int | None:
    """How long the probe may fail before it acts; None without the probe."""
    probe = mapping(target.body.get(name))
    if not probe:
        return None
    failing = _whole(probe.get("failureThreshold"), 3) * _whole(probe.get("periodSeconds"), 10)
    return failing + (_whole(probe.get("initialDelaySeconds"), 0) if delay else 0)


def liveness_kills(target: Target, options: Options) -> Iterator[Hit]:
    patience = patience_seconds(target, "livenessProbe")
    if target.body.get("startupProbe") or patience is None or patience >= options.slow_start_seconds:
        return
    yield Hit(
        f"livenessProbe kills the engine {patience} s after its start, and no startupProbe holds it back; loading "
        f"may take "
        f"{options.slow_start_seconds} s.",
        target.of_container("livenessProbe"),
    )


def startup_short(target: Target, options: Options) -> Iterator[Hit]:
    patience = patience_seconds(target, "startupProbe")
    if patience is not None and patience < options.slow_start_seconds:
        yield Hit(
            f"startupProbe gives up after {patience} s and the engine is killed; loading may take "
            f"{options.slow_start_seconds} s.",
            target.of_container("startupProbe"),
        )


def no_startup(target: Target, options: Options) -> Iterator[Hit]:
    """Without a liveness probe nothing kills it, and a long delay is a poor man's startup probe: then it is only
    told."""
    if target.body.get("startupProbe") or not target.serves:
        return
    patience = patience_seconds(target, "livenessProbe")
    if patience is None:
        yield Hit(
            "no startupProbe: nothing tells a slow start from a dead one.",
            target.of_container(),
            severity=Severity.INFO,
        )
    elif patience >= options.slow_start_seconds:
        yield Hit(
            f"no startupProbe: livenessProbe waits {patience} s at the start, and a dead engine stays as long as its "
            f"delay.",
            target.of_container("livenessProbe"),
        )


def no_readiness(target: Target, options: Options) -> Iterator[Hit]:
    if target.serves and not target.body.get("readinessProbe"):
        yield Hit(
            "no readinessProbe: the pod gets requests as soon as the container runs, long before the model is loaded.",
            target.of_container(),
        )


def liveness_first(target: Target, options: Options) -> Iterator[Hit]:
    live = patience_seconds(target, "livenessProbe", delay=False)
    ready = patience_seconds(target, "readinessProbe", delay=False)
    if live is not None and ready is not None and live < ready:
        yield Hit(
            f"livenessProbe acts after {live} s, readinessProbe after {ready} s: a busy engine is restarted before "
            f"it is taken out "
            "of the Service.",
            target.of_container("livenessProbe"),
        )
