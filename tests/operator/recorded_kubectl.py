"""A kubectl with a small cluster behind it: answers as the real one does, and keeps what was asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

Json = dict[str, Any]
PLURALS = {"VLLMTuner": "vllmtuners", "TuningTrial": "tuningtrials", "Deployment": "deployments", "Pod": "pods"}


class Recorded:
    """`refuse`: words of a call -> what kubectl prints on stderr. raw: path (its beginning) -> answer."""

    def __init__(self, *objects: Json) -> None:
        self.objects = [deepcopy(o) for o in objects]
        self.calls: list[list[str]] = []
        self.refuse: dict[str, str] = {}
        self.raw: dict[str, str] = {}
        self.rights: dict[tuple[str, str], bool] = {}
        for o in self.objects:
            o["metadata"].setdefault("resourceVersion", "1")
            o["metadata"].setdefault("namespace", "prod")

    def __call__(self, words: Sequence[str], given: str | None) -> tuple[int, str, str]:
        self.calls.append(list(words))
        said = next((text for part, text in self.refuse.items() if part in " ".join(words)), None)
        if said is not None:
            return 1, "", said
        if words[:2] == ["get", "--raw"]:
            answer = next((a for path, a in self.raw.items() if words[2].startswith(path)), None)
            return (1, "", "Error from server (NotFound): not found") if answer is None else (0, answer, "")
        if words[0] == "get":
            return self._get(words)
        if words[0] == "patch":
            return self._patch(words, given or "")
        if words[0] == "version":
            return (
                0,
                json.dumps({"clientVersion": {"gitVersion": "v1.36.0"}, "serverVersion": {"gitVersion": "v1.36.1"}}),
                "",
            )
        if words[:2] == ["auth", "can-i"]:
            allowed = self.rights.get((words[2], words[3]), True)
            return (0, "yes\n", "") if allowed else (1, "no\n", "")
        raise AssertionError(f"nobody asks kubectl for {words}")

    def _get(self, words: Sequence[str]) -> tuple[int, str, str]:
        kinds = {k.split(".")[0] for k in words[1].split(",")}
        found = [o for o in self.objects if PLURALS[o["kind"]] in kinds]
        if "-n" in words:
            found = [o for o in found if o["metadata"]["namespace"] == words[list(words).index("-n") + 1]]
        chosen = next((w for w in words if w.startswith("--selector=")), "")
        if chosen:
            key, value = chosen.removeprefix("--selector=").split("=")
            found = [o for o in found if o["metadata"].get("labels", {}).get(key) == value]
        if "name" in words[words.index("-o") :]:
            return 0, "".join(f"{PLURALS[o['kind']]}.x/{o['metadata']['name']}\n" for o in found), ""
        if not words[2].startswith("-"):
            one = next((o for o in found if o["metadata"]["name"] == words[2]), None)
            if one is None:
                return 1, "", f'Error from server (NotFound): {words[1]} "{words[2]}" not found'
            return 0, json.dumps(one), ""
        return 0, json.dumps({"kind": "List", "items": found}), ""

    def _patch(self, words: Sequence[str], given: str) -> tuple[int, str, str]:
        kind, name, body = words[1].split(".")[0], words[2], json.loads(given)
        (o,) = [o for o in self.objects if PLURALS[o["kind"]] == kind and o["metadata"]["name"] == name]
        meta = o["metadata"]
        if isinstance(body, list):
            test, *changes = body
            asked = test["value"]
            for change in changes:
                assert change["path"] == "/spec/template"
                new = {**o, "spec": {**o["spec"], "template": change["value"]}}
        else:
            asked = body["metadata"]["resourceVersion"]
            notes = {**meta.get("annotations", {}), **body["metadata"].get("annotations", {})}
            new = {**o, "metadata": {**meta, "annotations": notes}, "spec": {**o["spec"], **body.get("spec", {})}}
        if asked != meta["resourceVersion"]:
            return 1, "", "Error from server (Conflict): the object has been modified"
        new["metadata"]["resourceVersion"] = str(int(asked) + 1)
        self.objects[self.objects.index(o)] = new
        return 0, json.dumps(new), ""

    def one(self, kind: str, name: str) -> Json:
        (found,) = [o for o in self.objects if o["kind"] == kind and o["metadata"]["name"] == name]
        return found
