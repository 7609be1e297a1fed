"""One target under load with one tuner, in a namespace of its own: what the operator's cluster tests are made of."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import manifests

Json = dict[str, Any]

#: 4 slots cannot carry this load: requests wait, users give up. 48 can, with room.
STARVED = ("--max-num-seqs=4", "--enable-prefix-caching")
LOAD = ("--rate=6", "--duration=600", "--prompt=60:0.3", "--output=100:0.4", "--patience=8", "--cancel=0.1", "--seed=1")


@dataclass
class Scenario:
    """`kubectl` is bound to the scenario's namespace. `wait` polls once a second and says what it last saw."""

    kubectl: Any
    tuner: Json
    replicas: int = 2
    args: Sequence[str] = STARVED
    env: Mapping[str, str] = field(default_factory=dict)
    load: Sequence[str] = LOAD
    strategy: Json | None = None
    before: Json = field(default_factory=dict)

    def start(self) -> None:
        """The target; it settles while the others start."""
        items = manifests.target(replicas=self.replicas, args=self.args, env=self.env, strategy=self.strategy)
        self.kubectl("apply", "-f", "-", stdin={"apiVersion": "v1", "kind": "List", "items": items})

    def tune(self) -> None:
        self.kubectl("rollout", "status", "deployment/llm", "--timeout=180s", timeout=200)
        self.kubectl("apply", "-f", "-", stdin=manifests.load("load", "llm", self.load))
        self.before = self.deployment()
        self.kubectl("apply", "-f", "-", stdin=self.tuner)

    # --- looking ------------------------------------------------------------------------------------------------------
    def deployment(self) -> Json:
        found: Json = self.kubectl.json("get", "deployment", "llm")
        return found

    def trials(self) -> list[Json]:
        items: list[Json] = self.kubectl.json("get", "tuningtrials")["items"]
        return sorted(items, key=lambda t: t["spec"]["number"])

    def trial(self, number: int = 1) -> Json:
        found = [t for t in self.trials() if t["spec"]["number"] == number]
        return found[0] if found else {}

    def phase(self, number: int = 1) -> str:
        phase: str = (self.trial(number).get("status") or {}).get("phase", "")
        return phase

    def status(self) -> Json:
        found: Json = self.kubectl.json("get", "vt", "llm").get("status") or {}
        return found

    def condition(self, kind: str) -> Json:
        return next((c for c in self.status().get("conditions") or () if c["type"] == kind), {})

    def wait(self, what: str, check: Callable[[], bool], seconds: float = 120) -> float:
        """Until `check` holds; returns the seconds it took. Fails with the trial's and the tuner's status."""
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            if check():
                return time.monotonic() - started
            time.sleep(1)
        seen = {"trials": [t.get("status") for t in self.trials()], "tuner": self.status()}
        raise AssertionError(f"waited {seconds:.0f} s for: {what}\n{json.dumps(seen, indent=1)[:4000]}")

    def wait_phase(self, *phases: str, number: int = 1, seconds: float = 180) -> float:
        return self.wait(f"trial {number} in {phases}", lambda: self.phase(number) in phases, seconds)

    # --- asserting ----------------------------------------------------------------------------------------------------
    def assert_as_before(self, *, replicas: int | None = None) -> None:
        """The target's spec is what it was before the tuner, to the byte, and carries no mark of ours."""
        now, spec = self.deployment(), {**self.before["spec"]}
        if replicas is not None:
            spec["replicas"] = replicas
        assert json.dumps(now["spec"]["template"], sort_keys=True) == json.dumps(spec["template"], sort_keys=True)
        assert now["spec"] == spec
        assert "trimtab.dev/trial" not in now["metadata"].get("annotations", {})

    def records(self) -> list[Json]:
        """What the load's clients saw so far, one dict per request."""
        text = self.kubectl("logs", "load", timeout=60)
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def failures(self) -> dict[str, int]:
        """Failed requests by cause. Users who cancel or give up have not failed."""
        causes: dict[str, int] = {}
        for r in self.records():
            if r["ending"] in ("failed", "not_sent"):
                cause = str(r.get("cause"))
                causes[cause] = causes.get(cause, 0) + 1
        return causes
