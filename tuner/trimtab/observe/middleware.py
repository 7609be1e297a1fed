"""What the middleware in an engine says of itself, from the engine's own /metrics.

Hazard: only the lines that are wanted are parsed: the text comes from someone else's container. With several API
servers the generation is the lowest, and digests of earlier policies stay with the value 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from trimtab.observe.transport import ask_pod

#: as for scrapes: vLLM 0.32 with a few engines sends some 200 kB
_LIMIT_BYTES: Final = 16 << 20
_WANTED: Final = (
    "trimtab_mw_info", "trimtab_mw_policy_info", "trimtab_mw_policy_generation", "trimtab_mw_policy_bad",
)  # fmt: skip
_MAX_LINE: Final = 1024


@dataclass(frozen=True)
class MiddlewareView:
    """version: of the middleware. digest, generation: of the policy in effect; "" for none. bad: the file cannot be
    used, an earlier one holds."""

    version: str
    digest: str = ""
    generation: int = 0
    bad: bool = False


def read_middleware(text: str) -> MiddlewareView | None:
    """From the text of /metrics; None where no middleware shows in it. Never raises for any text."""
    found = [s for line in text.split("\n") if line.startswith(_WANTED) and (s := _sample(line)) is not None]
    labels = {name: labels for name, labels, value in found if value == 1.0}
    values = {name: value for name, _, value in found}
    if not labels.get("trimtab_mw_info"):
        return None
    # several digests at 1: the API servers disagree, so the policy is not yet in effect
    digests = {said.get("digest", "") for name, said, value in found if name == "trimtab_mw_policy_info" and value == 1}
    return MiddlewareView(
        version=labels["trimtab_mw_info"].get("version", ""),
        digest=digests.pop() if len(digests) == 1 else "",
        generation=int(values.get("trimtab_mw_policy_generation", 0.0)),
        bad=values.get("trimtab_mw_policy_bad", 0.0) > 0,
    )


def _sample(line: str) -> tuple[str, dict[str, str], float] | None:
    if len(line) > _MAX_LINE:
        return None
    try:
        (family,) = text_string_to_metric_families(line + "\n")
        (sample,) = family.samples
        value = float(sample.value)
    except (ValueError, IndexError, OverflowError, KeyError):
        return None
    return (sample.name, dict(sample.labels), value) if value - value == 0 else None


def ask_middleware(ip: str, port: int) -> MiddlewareView | None:
    """What `http://ip:port/metrics` says; None where it does not answer or no middleware shows."""
    return ask_pod(ip, port, "/metrics", _LIMIT_BYTES, lambda answer: read_middleware(answer.text))
