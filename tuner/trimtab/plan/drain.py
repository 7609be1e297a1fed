"""Whether pods of a template end without losing requests, and the template with what is missing for that. Pure.

The rules are those of `trimtab lint` (measured with vLLM 0.32, see lint/drain.py). Hazard: settings count for the pods
that have them; the first rollout after they were added still ends pods without.
"""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Mapping
from typing import Any, Final

from trimtab.engine.edits import Edits, apply_to_container
from trimtab.engine.flag_table import kinds
from trimtab.engine.locate import locate
from trimtab.engine.patch import json_patch, patch_command
from trimtab.lint.drain import DEFAULT_GRACE_SECONDS, MARGIN_SECONDS, SHUTDOWN_TIMEOUT, sleep_seconds
from trimtab.lint.finding import Options
from trimtab.lint.gather import targets_of
from trimtab.lint.report import ignored
from trimtab.lint.rules import RULES
from trimtab.lint.target import Neighbours, Target
from trimtab.manifests.documents import Document
from trimtab.manifests.workload import Workload

Json = dict[str, Any]

#: measured: until a pod is out of all endpoints about a second passes; 8 s lost no fresh connection
PRE_STOP_SECONDS: Final = 8
#: requests in flight at that time may go on for so long (examples/target.yaml)
SHUTDOWN_SECONDS: Final = 20
#: what both need, with room for the end of the engine's own processes (examples/target.yaml)
GRACE_SECONDS: Final = 45
#: what makes a restart lose requests; TT054 (kept connections) is the last 2% and cannot be mended by settings alone
_RULES: Final = ("TT046", "TT052", "TT051", "TT050", "TT053")
_PROBE: Final = {"timeoutSeconds": 1, "periodSeconds": 5, "successThreshold": 1, "failureThreshold": 3}


def problems(template: Mapping[str, Any], container: str | None, version: str | None) -> list[str]:
    """What makes ending pods of this template lose requests, a sentence each; [] where nothing does, or where no engine
    is found. What the template's annotation `trimtab.dev/lint-ignore` names is accepted."""
    target = _target(template, container, version)
    if target is None:
        return []
    accepted = ignored(template.get("metadata") or {})
    rules = [RULES[r] for r in _RULES if r not in accepted and not (r == "TT051" and _waits_long(target))]
    return [hit.message for rule in rules for hit in rule.check(target, Options(engine_version=version))]


def added(template: Mapping[str, Any], container: str | None, version: str | None) -> Json:
    """A copy of the template with what is missing. What the API server would fill in is written out, so that the
    template reads back as it was written. What is there stays, but for a grace period that is too short.

    Raises `EngineNotFound`, or `RewriteRefused` where the flag cannot be added to the command line.
    """
    target = _target(template, container, version)
    written: Json = _with_flag(template, container, target) if target is not None else copy.deepcopy(dict(template))
    target = _target(written, container, version)
    if target is None:
        return written
    body = _body(written, container)
    accepted = ignored(template.get("metadata") or {})
    if "TT052" not in accepted and not (body.get("lifecycle") or {}).get("preStop"):
        seconds = PRE_STOP_SECONDS if target.flag(SHUTDOWN_TIMEOUT) else PRE_STOP_SECONDS + SHUTDOWN_SECONDS
        body["lifecycle"] = {**(body.get("lifecycle") or {}), "preStop": {"sleep": {"seconds": seconds}}}
    if "TT046" not in accepted and not body.get("readinessProbe") and target.port is not None:
        body["readinessProbe"] = {"httpGet": {"path": "/health", "port": target.port, "scheme": "HTTP"}, **_PROBE}
    _raise_grace(written, container, version)
    return written


def command(
    before: Mapping[str, Any], after: Mapping[str, Any], container: str | None, name: str, namespace: str
) -> str:
    """`kubectl patch` from one template to the other of `added`; "" where it would show an API key."""
    where = locate(before, container)
    base = f"/spec/template/spec/{where.group}/{where.index}"
    old, new = _body(before, container), _body(after, container)
    lists: dict[str, Any] = copy.deepcopy(dict(before))
    words = {k: new[k] for k in ("command", "args") if k in new}
    lists["spec"][where.group][where.index] = old | words
    if patch_command(before, lists, name, namespace).startswith("#"):
        return ""
    operations = json_patch(before, lists)
    for key in ("lifecycle", "readinessProbe"):
        if old.get(key) != new.get(key):
            operations.append({"op": "add", "path": f"{base}/{key}", "value": new[key]})
    grace = after["spec"].get("terminationGracePeriodSeconds")
    if grace != before["spec"].get("terminationGracePeriodSeconds"):
        operations.append({"op": "add", "path": "/spec/template/spec/terminationGracePeriodSeconds", "value": grace})
    text = json.dumps(operations, separators=(",", ":")).replace("'", "\\u0027")
    return (
        f"kubectl patch deployment {shlex.quote(name)} -n {shlex.quote(namespace)} --type=json -p {shlex.quote(text)}"
    )


def _with_flag(template: Mapping[str, Any], container: str | None, target: Target) -> Json:
    """The template with --shutdown-timeout, where that engine's version knows it."""
    written: Json = copy.deepcopy(dict(template))
    accepted = "TT051" in ignored(template.get("metadata") or {})
    if accepted or target.flag(SHUTDOWN_TIMEOUT) is not None or SHUTDOWN_TIMEOUT not in kinds(target.version):
        return written
    located = locate(template, container)
    edited = apply_to_container(located, Edits(appended=((f"{SHUTDOWN_TIMEOUT}={SHUTDOWN_SECONDS}",),)))
    written["spec"][located.group][located.index] = copy.deepcopy(edited)
    return written


def _raise_grace(written: Json, container: str | None, version: str | None) -> None:
    target = _target(written, container, version)
    assert target is not None
    needed = sleep_seconds(target) + (target.integer(SHUTDOWN_TIMEOUT) or 0) + MARGIN_SECONDS
    given = written["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS)
    if isinstance(given, int) and given < needed:
        written["spec"]["terminationGracePeriodSeconds"] = max(needed, GRACE_SECONDS)


def _waits_long(target: Target) -> bool:
    """A vLLM that knows no --shutdown-timeout, whose hook alone waits as long as both would: it serves meanwhile."""
    missing = SHUTDOWN_TIMEOUT not in kinds(target.version)
    return missing and sleep_seconds(target) >= PRE_STOP_SECONDS + SHUTDOWN_SECONDS


def _body(template: Mapping[str, Any], container: str | None) -> Json:
    located = locate(template, container)
    body: Json = template["spec"][located.group][located.index]
    return body


def _target(template: Mapping[str, Any], container: str | None, version: str | None) -> Target | None:
    """The engine's container as the rules want it."""
    metadata: Json = {"name": "target"}
    data = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"template": template}}
    workload = Workload(
        "Deployment", "apps/v1", "target", "", ("spec", "template"), template, metadata, None,
        Document("", 0, 0, "", data),
    )  # fmt: skip
    found = list(targets_of(workload, Neighbours(), Options(engine_version=version)))
    named = [t for t in found if container is None or t.body.get("name") == container]
    return named[0] if named else None
