"""A recommended change in the forms in which the Deployment's owner keeps it: Helm values, Kustomize, a strategic merge
patch, a JSON patch; for a controller a patch of the object that it reads. Pure: two pod templates in, texts out.
Nothing here is applied by Trimtab.

Hazards: args is a list that a merge replaces as a whole, so the merge forms hold the whole list, as it was seen live;
the JSON forms test each item that they replace. A form that would show an API key is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from trimtab.engine.ownership import Owner, owners
from trimtab.engine.patch import changed_container, json_patch, secrets_of
from trimtab.engine.settings import Configuration, Value
from trimtab.errors import InputError
from trimtab.plan.owner_patch import OwnerPatch, Seen, command, owner_patch

Json = Mapping[str, Any]
#: characters of one form; four of them fit a status beside all else
MOST_FORM: Final = 16_000
#: values of vllm-project/production-stack, helm/templates/deployment-vllm-multi.yaml, under modelSpec[].vllmConfig
_STACK_VALUES: Final[Mapping[str, tuple[str, str]]] = {
    "max_num_seqs": ("maxNumSeqs", "--max-num-seqs"),
    "enable_prefix_caching": ("enablePrefixCaching", "--enable-prefix-caching"),
}
_STACK_RELEASE, _STACK_MODEL = "helm-release-name", "model"
#: label of llm-d and KServe on the pods of a split service: prefill, decode or both
_ROLE: Final = "llm-d.ai/role"
#: chart llm-d-modelservice; its Deployments are called by their part, and each part's containers have args of their own
_LLMD_CHART: Final = "llm-d-modelservice-"
_LLMD_PARTS: Final = ("decode", "prefill")
#: what that chart writes by itself, in this order
_LLMD_WRITTEN: Final = re.compile(
    r"(?:--model )?\S+ --port \d+(?: --(?:tensor|data)-parallel-size(?:-local)? \d+)* --served-model-name \S+"
)
_SERVE: Final = ["vllm", "serve"]
_NO_OWNER: Final = "Nobody else is known to write this Deployment: any of the forms will do, or the command in patch."


@dataclass(frozen=True)
class Source:
    """The object that a Deployment's controller reads. resource: its plural and group, as kubectl takes them."""

    resource: str
    body: Json = field(repr=False)


@dataclass(frozen=True)
class Handover:
    """owner: who writes the Deployment, "" where nobody is known to. A form is "" where it does not fit."""

    owner: str
    advice: str
    json_patch: str = ""
    strategic: str = ""
    kustomize: str = ""
    helm_values: str = ""
    #: JSON patch of the controller's object, and the kubectl line that applies it
    owner_patch: str = ""
    command: str = ""

    def files(self) -> dict[str, str]:
        """By the names that the tools expect."""
        named = {
            "values.yaml": self.helm_values,
            "kustomization.yaml": self.kustomize,
            "patch.yaml": self.strategic,
            "patch.json": self.json_patch,
            "owner-patch.json": self.owner_patch,
        }
        return {name: text for name, text in named.items() if text}


def handover(
    deployment: Json, before: Json, after: Json, changes: Mapping[str, Value | None], source: Source | None = None,
    version: str | None = None,
) -> Handover | None:  # fmt: skip
    """The change from template `before` to `after` for the owner of the Deployment.

    changes: the settings that change, by name. source: the object that the Deployment's controller reads, where it is
    known. version: vLLM's. None where nothing changes or more than a command line does.
    """
    meta = deployment["metadata"]
    found = owners(meta)
    try:
        operations = json_patch(before, after)
    except InputError:
        return None
    changed = changed_container(before, after)
    if not operations or changed is None:
        return None
    secrets = secrets_of(before, after)

    def shown(text: str) -> str:
        return "" if len(text) > MOST_FORM or any(s in text or json.dumps(s)[1:-1] in text for s in secrets) else text

    first = found[0] if found else None
    if first is not None and first.refuses:
        prefill = "prefill" in (meta["name"].rpartition("-")[2], (meta.get("labels") or {}).get(_ROLE))
        seen = Seen(before, after, changed[1], changed[2], changes, version, prefill)
        return _for_controller(first, source, seen, shown)
    return Handover(
        owner=first.title if first else "",
        advice=first.advice if first else _NO_OWNER,
        json_patch=shown(json.dumps(operations, indent=1) + "\n"),
        strategic=shown(_yaml(_strategic(meta, *changed))),
        kustomize=shown(_kustomize(meta["name"], operations)),
        helm_values=shown(_helm_values(meta, changed[1], changed[2], changes)) if _by_helm(found) else "",
    )


def _for_controller(owner: Owner, source: Source | None, seen: Seen, shown: Callable[[str], str]) -> Handover:
    """A patch of the Deployment would be undone, so there is none: only the controller's object counts."""
    if source is None:
        return Handover(owner.title, owner.advice)
    made: OwnerPatch = owner_patch(source.body, seen)
    if made.problem:
        return Handover(owner.title, f"{owner.advice} There is no patch for it: {made.problem}.")
    meta = source.body["metadata"]
    text = shown(json.dumps(list(made.operations), indent=1) + "\n")
    line = shown(command(source.resource, meta["name"], meta.get("namespace", "default"), made.operations))
    if not text or not line:
        return Handover(
            owner.title, f"{owner.advice} The patch would show an API key or is too long, so it is left out."
        )
    above = [o.advice for o in owners(meta)][:1]
    advice = " ".join(part for part in (owner.advice, made.note, *above) if part)
    return Handover(owner.title, advice, owner_patch=text, command=line)


def _by_helm(found: tuple[Owner, ...]) -> bool:
    return any(o.kind in ("helm", "flux", "argocd") for o in found)


def _strategic(meta: Json, group: str, before: Json, after: Json) -> dict[str, Any]:
    """A strategic merge patch: the container by its name, with the lists and variables that differ."""
    container: dict[str, Any] = {"name": after["name"]}
    for where in ("command", "args"):
        if before.get(where) != after.get(where):
            container[where] = after.get(where)  # None takes the list away
    if before.get("env") != after.get("env"):
        pairs = zip(before["env"], after["env"], strict=True)
        container["env"] = [{"name": new["name"], "value": new["value"]} for old, new in pairs if old != new]
    named = {k: meta[k] for k in ("name", "namespace") if k in meta}
    spec = {"template": {"spec": {group: [container]}}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": named, "spec": spec}


def _kustomize(name: str, operations: list[dict[str, Any]]) -> str:
    """Lines for a kustomization.yaml; the patch is a JSON patch with its tests."""
    target = {"group": "apps", "version": "v1", "kind": "Deployment", "name": name}
    patch = json.dumps(operations, indent=1)
    return _yaml({"patches": [{"target": target, "patch": patch}]})


def _helm_values(meta: Json, before: Json, after: Json, changes: Mapping[str, Value | None]) -> str:
    """For a chart whose values are known, else the container's list under the name that most charts give it."""
    known = _stack_values(meta, after, changes) or _llmd_values(meta, before, after)
    if known is not None:
        return known
    where = "args" if after.get("args") else "command"
    text = f"# The chart decides under which key it takes the container's {where}; look for it in its values.\n"
    return text + _yaml({where: after.get(where)})


def _llmd_values(meta: Json, before: Json, after: Json) -> str | None:
    """Of the llm-d-modelservice chart (templates/_helpers.tpl: command): it writes the model, port, parallelism and
    served name in front of the entry's own args, unless the entry has a command of its own.
    """
    labels = meta.get("labels")
    chart = str(labels.get("helm.sh/chart", "")) if isinstance(labels, Mapping) else ""
    part = next((p for p in _LLMD_PARTS if str(meta["name"]).endswith(f"-{p}")), None)
    if not chart.startswith(_LLMD_CHART) or part is None or before.get("command") != after.get("command"):
        return None
    args = [str(item) for item in after.get("args") or ()]
    written = _LLMD_WRITTEN.match(" ".join(args)) if (after.get("command") or _SERVE) == _SERVE else None
    own = args[len(written[0].split()) :] if written else args
    head = f"# Into entry {json.dumps(after['name'])} of {part}.containers; Helm replaces lists: keep its other keys.\n"
    if written:
        head += f"# Unless its modelCommand is custom, the chart itself writes {json.dumps(written[0])}.\n"
    return head + _yaml({part: {"containers": [{"name": after["name"], "args": own}]}})


def _stack_values(meta: Json, after: Json, changes: Mapping[str, Value | None]) -> str | None:
    """Of the production-stack chart; None for another chart, or where a value would not decide."""
    labels = meta.get("labels")
    labels = labels if isinstance(labels, Mapping) else {}
    release, model = labels.get(_STACK_RELEASE), labels.get(_STACK_MODEL)
    if not release or not model or meta["name"] != f"{release}-{model}-deployment-vllm":
        return None
    items = [str(i).replace("_", "-") for i in (*(after.get("command") or ()), *(after.get("args") or ()))]
    values: dict[str, object] = {}
    for name, value in changes.items():
        known = _STACK_VALUES.get(name)
        if known is None or value is None:
            return None
        # a second one comes from extraArgs, stands behind the value's own and wins
        if sum(i.partition("=")[0].replace("--no-", "--") == known[1] for i in items) != 1:
            return None
        values[known[0]] = value
    entry = {"name": model, "vllmConfig": values}
    text = (
        f"# Into entry {json.dumps(model)} of servingEngineSpec.modelSpec; Helm replaces lists, so keep the others.\n"
    )
    return text + _yaml({"servingEngineSpec": {"modelSpec": [entry]}})


def changes_between(before: Configuration, after: Configuration) -> dict[str, Value | None]:
    """Names and values of the settings that change; None is back to vLLM's default."""
    return before.changes_to(after)


class _Dumper(yaml.SafeDumper):
    """Long scripts as blocks, nothing folded."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    # a block keeps the text only where no line ends or begins with what YAML would take
    style = "|" if "\n" in text and text == text.strip(" \t") and text.isascii() else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _block)


def _yaml(value: object) -> str:
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=False)
