"""vLLM's version, if the pod template says it.

In order: the label or annotation `trimtab.dev/engine-version`, another that names vLLM's version, the image's tag.
Hazard: latest, digests, dates, vendors' own numbers (25.09, 1.20.1) and bundles' versions are not vLLM's: None then,
and the server's /version must be asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

ENGINE_VERSION: Final = "trimtab.dev/engine-version"
_NUMBER = r"\d{1,4}\.\d{1,4}\.\d{1,4}(?:\.post\d{1,4}|rc\d{1,4})?"
_VERSION = re.compile(rf"v?({_NUMBER})(?=$|[-_+])")
_MARKED = re.compile(rf"vllm[_-]?v?({_NUMBER})(?![\d.])")
_UPSTREAM = re.compile(r"(?:^|/)vllm-(?:openai|cpu|tpu|xpu|rocm)[a-z0-9-]*$")
#: repositories whose tags are their own version, not vLLM's
_BUNDLES = re.compile(r"(?:^|/)(?:lmcache|llm-d|nvidia)/")
_LABEL = re.compile(r"(?:^|[/._-])vllm[-_./]?version$")


def engine_version(image: str, metadata: Mapping[str, Any]) -> str | None:
    """The version by the pod's labels and annotations, else by its image's tag; None if neither says it."""
    marks = {**_texts(metadata.get("annotations")), **_texts(metadata.get("labels"))}
    named = [marks[ENGINE_VERSION]] if ENGINE_VERSION in marks else [v for k, v in marks.items() if _LABEL.search(k)]
    for text in named:
        if found := _VERSION.fullmatch(text):
            return found[1]
    return tag_version(image)


def tag_version(image: str) -> str | None:
    """The version if the tag says so."""
    path, _, tag = image.split("@")[0].rpartition(":")
    if not path or "/" in tag:
        return None
    if marked := _MARKED.search(tag):
        return marked[1]
    if _BUNDLES.search(path) or not _UPSTREAM.search(path):
        return None
    found = _VERSION.match(tag)
    return found[1] if found else None


def _texts(value: Any) -> dict[str, str]:
    return {k: v for k, v in value.items() if isinstance(v, str)} if isinstance(value, Mapping) else {}
