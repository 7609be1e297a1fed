"""Put the middleware into a pod template, and take it out again. Pure.

What is added: two ConfigMap volumes (code, policy) with their mounts, variables, the flag `--middleware`, and where the
container has no preStop hook and a token is given, one that drains. Nothing in the image is needed or changed.
Hazard: an `env` entry hides a PYTHONPATH that the image itself sets; the canary shows it, before all pods have it.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from trimtab.engine.command import describe
from trimtab.engine.edits import Edits, apply_to_container
from trimtab.engine.flag_table import OLDEST, kinds
from trimtab.engine.flags import Flag, Scan, scan
from trimtab.engine.image_version import ENGINE_VERSION
from trimtab.engine.locate import Located, locate
from trimtab.engine.versions import parse
from trimtab.errors import RewriteRefused

Json = dict[str, Any]

#: the folder on PYTHONPATH, the package in it, and the class that vLLM imports
PYTHON_PATH: Final = "/opt/trimtab"
PACKAGE_PATH: Final = f"{PYTHON_PATH}/trimtab_mw"
MIDDLEWARE_CLASS: Final = "trimtab_mw.Middleware"
#: beside it, not in it: a folder on PYTHONPATH would be a package. Mounted whole, a `subPath` is never updated
POLICY_PATH: Final = "/opt/trimtab-policy"
POLICY_KEY: Final = "policy.json"
CODE_VOLUME: Final = "trimtab-middleware"
POLICY_VOLUME: Final = "trimtab-policy"
_FLAG: Final = "--middleware"
_POLICY_FILE: Final = {"name": "TRIMTAB_POLICY_FILE", "value": f"{POLICY_PATH}/{POLICY_KEY}"}
_POD_NAME: Final = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}
_TOKEN: Final = "TRIMTAB_DRAIN_TOKEN"
_DRAIN: Final = "/trimtab/drain"
#: facts of the field: with 8 s and --shutdown-timeout no request was lost; the kubelet's grace covers hook and end
DRAIN_SECONDS: Final = 8
_GRACE_SECONDS: Final = 30
#: what the engine needs after the hook at the least
_END_SECONDS: Final = 5
#: python -E, -I and bundles of them: it does not look at PYTHONPATH
_ISOLATED = re.compile(r"-[a-zA-Z]*[EI][a-zA-Z]*$")


@dataclass(frozen=True)
class InstallNames:
    """The ConfigMaps that the pod mounts. drain_token: who sends it may drain the pod; "" for no hook."""

    code: str
    policy: str
    drain_token: str = ""


def installed(
    template: Mapping[str, Any], container: str | None, names: InstallNames, version: str | None = None
) -> Json:
    """A copy of `template` with the middleware; one that has it already gets `names`.

    version: vLLM's, where the caller knows it better than the template. Raises `EngineNotFound`, and `RewriteRefused`
    with a code where it cannot be put in safely.
    """
    written = removed(template, container)
    located = locate(written, container)
    scanned = scan(located.words, located.first)
    _check(written, located, scanned, version)
    edited = apply_to_container(located, Edits(appended=((f"{_FLAG}={MIDDLEWARE_CLASS}",),)))
    body = copy.deepcopy(edited)
    spec = written["spec"]
    spec[located.group][located.index] = body
    body["volumeMounts"] = [
        *(body.get("volumeMounts") or ()),
        {"name": CODE_VOLUME, "mountPath": PACKAGE_PATH, "readOnly": True},
        {"name": POLICY_VOLUME, "mountPath": POLICY_PATH, "readOnly": True},
    ]
    spec["volumes"] = [
        *(spec.get("volumes") or ()),
        {"name": CODE_VOLUME, "configMap": {"name": names.code, "defaultMode": 420}},
        {"name": POLICY_VOLUME, "configMap": {"name": names.policy, "defaultMode": 420, "optional": True}},
    ]
    _add_variables(body, names.drain_token if _may_drain(spec, body) else "")
    if names.drain_token and _may_drain(spec, body):
        _add_drain(body, names.drain_token, describe(located, scanned).port)
    _verify(written, located, scanned)
    return written


def installed_names(template: Mapping[str, Any]) -> InstallNames | None:
    """The ConfigMaps of an installed middleware; None where it is not installed (by this module)."""
    volumes = {v.get("name"): v for v in template.get("spec", {}).get("volumes") or () if isinstance(v, Mapping)}
    code, policy = ((volumes.get(n) or {}).get("configMap") or {} for n in (CODE_VOLUME, POLICY_VOLUME))
    if not code.get("name") or not policy.get("name"):
        return None
    return InstallNames(str(code["name"]), str(policy["name"]), _token(template))


def is_installed(template: Mapping[str, Any]) -> bool:
    return installed_names(template) is not None


def removed(template: Mapping[str, Any], container: str | None = None) -> Json:
    """A copy of `template` without what `installed` added: byte for byte what it was, if it had no empty lists.

    The API server drops those. Other edits that were made since are kept.
    """
    written: Json = copy.deepcopy(dict(template))
    if not is_installed(template):
        return written
    located = locate(written, container)
    own = {p for f in scan(located.words, located.first).flags if _is_own(f) for p in (f.position, *f.value_positions)}
    body = copy.deepcopy(apply_to_container(located, Edits(removals=tuple(sorted(own)))))
    spec = written["spec"]
    spec[located.group][located.index] = body
    _drop(spec, "volumes", lambda v: v.get("name") in (CODE_VOLUME, POLICY_VOLUME))
    _drop(body, "volumeMounts", lambda m: m.get("name") in (CODE_VOLUME, POLICY_VOLUME))
    _remove_variables(body)
    _remove_drain(body)
    return written


# --- may it be put in -------------------------------------------------------------------------------------------------
def _check(template: Json, located: Located, scanned: Scan, version: str | None) -> None:
    command = describe(located, scanned)
    if command.multi_node:
        raise RewriteRefused(
            "several pods or nodes make one engine, so one pod cannot be changed alone",
            hint="Put the middleware into all of its pods in their own source, see docs/middleware.md.",
            code="MultiNode",
        )
    _check_version(version or command.version)
    given = [f.value or "" for f in scanned.flags if f.name == _FLAG]
    variable = _named(located.container, _POLICY_FILE["name"])
    if variable or any(value.startswith(("trimtab_mw.", "trimtab.middleware")) for value in given):
        raise RewriteRefused(
            "a Trimtab middleware that was put in by hand is there already",
            hint="Take its --middleware flag out, or leave spec.tokenPolicy.middleware: Off and keep it by hand.",
            code="MiddlewareByHand",
        )
    _check_python_path(located)
    if _named(located.container, "POD_NAME") not in (None, _POD_NAME, _without_version(_POD_NAME)):
        raise RewriteRefused(
            "the container's variable POD_NAME is not the pod's name (fieldRef metadata.name)",
            hint="Give that variable another name, or the value from metadata.name: arms by pods are told apart by it.",
            code="PodNameTaken",
        )
    _check_places(template, located.container)


def _check_version(version: str | None) -> None:
    found, oldest = parse(version), parse(OLDEST)
    if found and oldest and (found < oldest or _FLAG not in kinds(version)):
        raise RewriteRefused(
            f"vLLM {version} is older than {OLDEST}, the first that the middleware is made for",
            hint=f"Upgrade vLLM; or, if the version is wrong or unknown, say it by the pod label {ENGINE_VERSION}.",
            code="VersionGated",
        )


def _check_python_path(located: Located) -> None:
    container = located.container
    texts = [t for where in ("command", "args") for t in container.get(where) or () if isinstance(t, str)]
    if any("PYTHONPATH" in text for text in texts):
        raise RewriteRefused(
            "the container's command sets or uses PYTHONPATH",
            hint=f"Set PYTHONPATH in the container's env instead; Trimtab adds {PYTHON_PATH} there.",
            code="PythonPathInScript",
        )
    start = [word.text for word in located.words[: located.first]]
    if any(_ISOLATED.match(text) for text in start if "python" in " ".join(start)):
        raise RewriteRefused(
            "Python is started with -E or -I and looks at no PYTHONPATH",
            hint="Leave the option out, or bake the middleware into the image, see docs/middleware.md.",
            code="PythonPathIgnored",
        )
    entry = _named(container, "PYTHONPATH")
    literal = entry is None or ("valueFrom" not in entry and isinstance(entry.get("value", ""), str))
    unknown = entry is None and any(
        "PYTHONPATH".startswith(str(source.get("prefix") or ""))
        for source in container.get("envFrom") or ()
        if isinstance(source, Mapping)
    )
    if not literal or unknown:
        raise RewriteRefused(
            "PYTHONPATH comes, or may come, from an object that is not in the pod template",
            hint="Write PYTHONPATH with its value (or an empty one) into the container's env, which wins over envFrom.",
            code="PythonPathOutOfSight",
        )


def _check_places(template: Json, container: Mapping[str, Any]) -> None:
    """Nothing else may sit where the volumes go."""
    paths = {str(m.get("mountPath", "")).rstrip("/") for m in container.get("volumeMounts") or ()}
    names = {v.get("name") for v in template["spec"].get("volumes") or ()}
    taken = sorted({p for p in paths if p in (POLICY_PATH, PYTHON_PATH) or p.startswith(PYTHON_PATH + "/")})
    taken += sorted(str(n) for n in names & {CODE_VOLUME, POLICY_VOLUME})
    if taken:
        raise RewriteRefused(
            f"{', '.join(taken)} is taken by another volume",
            hint="Give that volume another name and path; Trimtab needs these for its middleware.",
            code="MountTaken",
        )


# --- variables --------------------------------------------------------------------------------------------------------
def _named(container: Mapping[str, Any], name: str) -> Json | None:
    """The entry of `env` that counts: the last of its name."""
    found = [e for e in container.get("env") or () if isinstance(e, Mapping) and e.get("name") == name]
    return dict(found[-1]) if found else None


def _without_version(entry: Json) -> Json:
    """The same reference as a manifest writes it; the API server adds apiVersion."""
    field = {k: v for k, v in entry["valueFrom"]["fieldRef"].items() if k != "apiVersion"}
    return {**entry, "valueFrom": {"fieldRef": field}}


def _add_variables(body: Json, token: str) -> None:
    """PYTHONPATH in place if it is there; all that is new stands behind TRIMTAB_POLICY_FILE, which marks it as ours."""
    entries = [dict(e) for e in body.get("env") or ()]
    added: list[Json] = [dict(_POLICY_FILE)]
    old = _named(body, "PYTHONPATH")
    if old is None:
        added.append({"name": "PYTHONPATH", "value": PYTHON_PATH})
    else:
        position = max(i for i, e in enumerate(entries) if e.get("name") == "PYTHONPATH")
        # an empty value stays recognisable by the slash: a trailing colon would be the working directory
        new = f"{PYTHON_PATH}:{old['value']}" if old.get("value") else f"{PYTHON_PATH}/"
        entries[position] = {**entries[position], "value": new}
    if _named(body, "POD_NAME") is None:
        added.append(copy.deepcopy(_POD_NAME))
    if token:
        added.append({"name": _TOKEN, "value": token})
    body["env"] = [*entries, *added]


def _remove_variables(body: Json) -> None:
    entries = list(body.get("env") or ())
    mark = next((i for i, e in enumerate(entries) if e == _POLICY_FILE), None)
    if mark is None:
        return
    own = [{"name": "PYTHONPATH", "value": PYTHON_PATH}, _POD_NAME, _without_version(_POD_NAME)]
    behind = [e for e in entries[mark + 1 :] if e not in own and e.get("name") != _TOKEN]
    body["env"] = [_path_restored(e) for e in (*entries[:mark], *behind)]
    _drop(body, "env", lambda _: False)


def _path_restored(entry: Json) -> Json:
    value = entry.get("value")
    if entry.get("name") != "PYTHONPATH" or not isinstance(value, str):
        return entry
    if value == f"{PYTHON_PATH}/":
        return {**entry, "value": ""} if "value" in entry else entry
    return {**entry, "value": value.removeprefix(f"{PYTHON_PATH}:")}


# --- drain ------------------------------------------------------------------------------------------------------------
def _may_drain(spec: Json, body: Json) -> bool:
    grace = spec.get("terminationGracePeriodSeconds")
    room = (_GRACE_SECONDS if grace is None else grace) >= DRAIN_SECONDS + _END_SECONDS
    return room and not (body.get("lifecycle") or {}).get("preStop")


def _add_drain(body: Json, token: str, port: int) -> None:
    hook = {
        "path": f"{_DRAIN}?seconds={DRAIN_SECONDS}",
        "port": port,
        "scheme": "HTTP",
        "httpHeaders": [{"name": "x-trimtab-token", "value": token}],
    }
    body["lifecycle"] = {**(body.get("lifecycle") or {}), "preStop": {"httpGet": hook}}


def _remove_drain(body: Json) -> None:
    lifecycle = dict(body.get("lifecycle") or {})
    hook = (lifecycle.get("preStop") or {}).get("httpGet") or {}
    if not str(hook.get("path", "")).startswith(_DRAIN):
        return
    del lifecycle["preStop"]
    if lifecycle:
        body["lifecycle"] = lifecycle
    else:
        del body["lifecycle"]


def _token(template: Mapping[str, Any]) -> str:
    for group in ("containers", "initContainers"):
        for body in template["spec"].get(group) or ():
            if (entry := _named(body, _TOKEN)) is not None and isinstance(entry.get("value"), str):
                return str(entry["value"])
    return ""


# --- small helpers ----------------------------------------------------------------------------------------------------
def _is_own(flag: Flag) -> bool:
    return flag.name == _FLAG and flag.value == MIDDLEWARE_CLASS


def _drop(holder: Json, key: str, unwanted: Any) -> None:
    """Without the unwanted items; the key goes with the last one."""
    if key not in holder:
        return
    left = [item for item in holder[key] or () if not unwanted(item)]
    if left:
        holder[key] = left
    else:
        del holder[key]


def _verify(written: Json, before: Located, scanned: Scan) -> None:
    """Read back: one flag more, the rest the same."""
    after = locate(written, before.name or None)
    rescanned = scan(after.words, after.first)
    kept = [f for f in rescanned.flags if not _is_own(f)]

    def told(flags: Any, words: Any) -> list[Any]:
        return [(f.name, f.negated, f.path, tuple(words[p].text for p in f.value_positions)) for f in flags]

    same = told(kept, after.words) == told(scanned.flags, before.words)
    start = [w.text for w in before.words[: before.first]] == [w.text for w in after.words[: after.first]]
    if not (same and start and len(rescanned.flags) == len(scanned.flags) + 1):
        raise RewriteRefused(
            "the edited command line does not read back as wanted, so it was not used", code="NotReadBack"
        )
