"""What a rollout does to the fleet. Only Deployments are judged; what is absent is Kubernetes' default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trimtab.lint.finding import Hit, Options
from trimtab.lint.target import Target, mapping
from trimtab.text import whole_number


def _replicas(target: Target) -> int | None:
    """None where the manifest leaves it to an autoscaler, or it is no number."""
    value = target.spec.get("replicas")
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _surge(value: Any, replicas: int) -> int:
    """Pods above `replicas`; Kubernetes rounds a percentage of maxSurge up."""
    text = str(value)
    number = whole_number(text.removesuffix("%")) or 0
    return -(-number * replicas // 100) if text.endswith("%") else number


def whole_fleet(target: Target, options: Options) -> Iterator[Hit]:
    rolling = mapping(mapping(target.spec.get("strategy")).get("rollingUpdate"))
    replicas = _replicas(target)
    if target.kind != "Deployment" or "maxSurge" not in rolling or replicas == 1:
        return
    value = rolling["maxSurge"]
    if (replicas is None and str(value) == "100%") or (replicas and _surge(value, replicas) >= replicas):
        yield Hit(
            f"maxSurge {str(value)[:20]} starts a whole second fleet at each rollout, on GPUs that must be free.",
            target.of_object("spec", "strategy", "rollingUpdate", "maxSurge"),
        )


def recreate(target: Target, options: Options) -> Iterator[Hit]:
    strategy, replicas = mapping(target.spec.get("strategy")), _replicas(target)
    if target.kind == "Deployment" and strategy.get("type") == "Recreate" and (replicas is None or replicas > 1):
        yield Hit("strategy Recreate ends all pods before the first new one starts: nothing serves meanwhile.",
                  target.of_object("spec", "strategy", "type"))  # fmt: skip


def single(target: Target, options: Options) -> Iterator[Hit]:
    if target.kind == "Deployment" and _replicas(target) == 1:
        yield Hit("one replica: there is no control to compare a canary with, and without a spare GPU each change is "
                  "an outage.",
                  target.of_object("spec", "replicas"))  # fmt: skip


def absent(target: Target, options: Options) -> Iterator[Hit]:
    if target.kind == "Deployment" and target.spec.get("replicas") is None:
        yield Hit("replicas is absent: an autoscaler owns it, or there is one pod.", target.of_object("spec"))
