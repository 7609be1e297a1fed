"""Free text of a report: which topics it speaks of, and the few numbers it may hold.

Hazard: words are hints. A rule raises or lowers its confidence by them and never rests on them against numbers. A
sentence with "no", "not" or "without" shortly before the word does not count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_BULK: Final = "batch|offline|nightly|bulk|summari[sz]ation|embedding|ingest|rag|long.?context"
_LIVE: Final = "chat|interactive|short|online|autocomplete"
#: topic -> what speaks of it
_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "proxy": (r"\b(?:nginx|envoy|haproxy|traefik|istio|litellm|ingress|gateway|proxy|proxies|router|load.?balancer)",),
    "retry": (r"\bretr(?:y|ies|ied|ying)\b", r"\bresen[dt]", r"\btry again"),
    "timeout": (r"\btime[- ]?d?[- ]?outs?\b", r"\btimed out\b", r"\bdeadline\b", r"\b499s?\b", r"\b504s?\b"),
    "cancel": (
        r"\bcancel", r"\babort", r"\bdisconnect", r"\babandon", r"\bhang up\b", r"\b499s?\b",
        r"\bclosed? the (?:tab|stream|connection)",
        r"\b(?:clients?|users?) (?:leave|left|give up|gave up|close|go away)",
    ),
    "cpu": (
        r"\bcpu\b.{0,60}(?:limit|100 ?%|pegged|satur|thrott|busy|maxed|bound|pinned|quota|full|at \d)",
        r"thrott", r"\bomp_num_threads\b", r"\bGIL\b", r"\bpegged\b", r"\b(?:one|single|1) core\b",
        r"\bkubectl top\b", r"tokeni[sz](?:er|ation) (?:is )?slow",
    ),
    "gpu_idle": (r"\bgpus?\b.{0,40}(?:\bidle|under.?util|mostly idle|low util|(?<!\d)[0-4]?\d ?%)",),
    "gpu_busy": (r"\bgpus?\b.{0,40}(?:9\d|100) ?%",),
    "uneven": (
        r"\buneven", r"\bskew", r"\bimbalanc", r"\bunbalanc", r"\bhot (?:pod|rank|replica)",
        r"\bone (?:pod|rank|replica|gpu)\b.{0,40}\b(?:all|most|full|queue|overload|\d\d ?%)",
    ),
    "lora": (r"\blora\b", r"\badapters?\b"),
    "ranks": (
        r"\bdata.parallel", r"\bdp[ =-]?\d", r"\branks?\b", r"\bsticky", r"session affinity", r"round.?robin",
        r"\b(?:one|other|each|second|sibling|half (?:of )?the|two of the) (?:pods?|replicas?|ranks?)\b", r"hash.?ring",
    ),
    "disaggregated": (
        r"\bP/?D\b", r"\bdisaggregat", r"\bprefill (?:pod|instance|worker|node|server)", r"\bnixl\b",
        r"\bmooncake\b", r"\blmcache\b", r"\bkv.?(?:connector|transfer)", r"\bconnector\b",
    ),
    "oom": (
        r"\bout.of.memory\b", r"\bOOM(?:Kill|\b)", r"\bOutOfMemory", r"\bcuda oom\b", r"exit code 137",
    ),
    "host_oom": (r"\bOOMKill", r"exit code 137", r"\bhost memory\b", r"\bcgroup\b"),
    "no_effect": (
        r"(?:changed|made|brought|gave|gained|had|has|did|does|with|saw|see) (?:no(?:thing)?|not help|zero|little)\b",
        r"\bno (?:gain|difference|effect|improvement|change|speed-?up|help)", r"\bwithin noise\b", r"\bunchanged\b",
        r"\bd(?:id|oe?s?)(?: not|n't) (?:help|change|matter|improve)", r"\bmade it worse\b", r"\bno better\b",
        r"\bsame (?:speed|throughput|result|figures?|numbers?)",
    ),
    "shared_prefix": (
        r"\bsystem prompt", r"\bshared? (?:prefix|prompt|context|system)", r"\bmulti.?turn", r"\bfew.?shot",
        r"\bsame (?:document|prompt|prefix|context|template)", r"\bchat history", r"\bagent(?:s|ic)?\b",
        r"\bidentical prompts?",
    ),
    "distinct_prompts": (
        r"\b(?:unique|distinct|random|unrelated|different) (?:prompts?|documents?|prefix)", r"\bno shared prefix",
        r"\bnothing (?:is )?shared",
    ),
    "mixed": (
        rf"\b(?:{_BULK})\b.{{0,60}}\b(?:{_LIVE}|user)", rf"\b(?:{_LIVE})\b.{{0,60}}\b(?:{_BULK}|long)\b",
        r"\btwo (?:kinds|shapes|classes|types|populations)", r"\bbimodal",
    ),
    "interconnect": (
        r"\bpci-?e\b", r"\bnvlink\b", r"\bnvswitch\b", r"\binterconnect", r"\binfiniband", r"\bP2P\b", r"\ball.?reduce",
        r"\bnccl\b",
    ),
    "speculative": (r"\bspeculat", r"\bdraft model", r"\beagle\b", r"\bmedusa\b", r"\bmtp\b", r"\bn-?gram dec"),
    "quantized": (r"\bfp8\b", r"\bint4\b", r"\bawq\b", r"\bgptq\b", r"\b4.?bit\b", r"\bquanti[sz]"),
    "structured": (
        r"\bstructured", r"\bguided", r"\bjson.?schema", r"\bgrammar", r"\bxgrammar", r"\boutlines\b", r"\btool.?call",
    ),
    "long_prompt": (
        r"\blong(?:est)? (?:prompt|context|document|input)", r"\b\d{2,4} ?k(?:[- ]token)? (?:prompt|context|input)",
        r"\bone (?:huge|very long|giant|single)",
    ),
    "restart": (
        r"\brestart", r"\bjust (?:started|deployed)", r"\bfresh (?:pod|process)", r"\broll(?:ed|ing)? ?out",
        r"\bcold\b", r"\bafter (?:a )?deploy",
    ),
    "aging": (
        r"\bafter (?:about )?\d+ ?(?:h|hours?|days?)", r"\bsince (?:yesterday|last)", r"\bover (?:hours|days)",
        r"\bgrows? (?:over|slowly|for)", r"\buntil (?:a )?restart", r"\bmemory grows", r"\bfor good\b",
        r"\bnever recovers",
    ),
    "health_ok": (
        r"/health\b.{0,30}\b(?:200|ok|green|healthy)", r"\b(?:ready|healthy|green)\b.{0,20}/health",
        r"\bprobes? (?:pass|green|ok)",
    ),
    "health_bad": (
        r"\bprobes? (?:fail|miss|time)", r"\bliveness (?:fail|kill|restart)", r"\bfalse restarts?",
        r"\bhealth ?check (?:fail|time)", r"/health\b.{0,30}\b(?:fail|time|50\d)",
    ),
    "stats_off": (r"disable-log-stats", r"\bno (?:vllm )?metrics\b", r"/metrics\b.{0,30}(?:empty|404|missing|nothing)"),
    "reply_repeat": (
        r"\b(?:two|2|three|few|same|identical|one) (?:distinct )?prompts? (?:repeat|over|only|again)",
        r"\btwo distinct prompts",
    ),
    "evictable": (r"\bevictable", r"\bradix", r"\bcached? tokens? count"),
}  # fmt: skip
TOPICS: Final = {topic: re.compile("|".join(words), re.IGNORECASE) for topic, words in _WORDS.items()}
_DENIED: Final = re.compile(
    r"\b(?:no|not|without|never|isn't|aren't|don't|doesn't|neither|nor)\s+(?:\S+\s+){0,2}$", re.I
)
_TOKENS: Final = r"([\d][\d,_. ]*\d|\d)\s*(k|K|M)?\s*"
_POOL: Final = re.compile(rf"(?:pool|kv.?cache(?: size)?|capacity)\D{{0,20}}{_TOKENS}tokens", re.IGNORECASE)
_PROMPT: Final = re.compile(rf"{_TOKENS}-?\s*token\s+(?:prompt|input|request|document)", re.IGNORECASE)
_PROMPT_OF: Final = re.compile(
    rf"(?:prompt|input|request|document)s?\s+(?:of|with|has|is|up to|about)\s+(?:about |up to |over )?{_TOKENS}tokens",
    re.IGNORECASE,
)
_SLO: Final = re.compile(
    r"\b(?:slo|limit|target|goal|objective)\b.{0,20}\b(ttft|tpot|itl)\b\D{0,12}([\d.]+)\s*(ms|s)\b", re.I
)
_SLO_BEHIND: Final = re.compile(
    r"\b(ttft|tpot|itl)\b.{0,10}\b(?:slo|limit|target|goal|objective)\b\D{0,12}([\d.]+)\s*(ms|s)\b", re.I
)
_LEFT: Final = re.compile(
    r"([\d.]+)\s*%\s+(?:of\s+)?(?:\S+\s+){0,3}?(?:cancel|abort|abandon|disconnect|time|leave|left|retri)", re.IGNORECASE
)


@dataclass(frozen=True)
class Facts:
    """Sentences as they were written."""

    lines: tuple[str, ...] = ()

    def about(self, *topics: str) -> tuple[str, ...]:
        """The lines that speak of any of these topics, each once."""
        return tuple(line for line in self.lines if any(_speaks(TOPICS[t], line) for t in topics))

    @property
    def pool_tokens(self) -> float | None:
        """KV capacity, as vLLM's own start-up line has it ("GPU KV cache size: 76,640 tokens")."""
        return _largest(_POOL, self.lines)

    @property
    def longest_prompt_tokens(self) -> float | None:
        found = [v for p in (_PROMPT, _PROMPT_OF) if (v := _largest(p, self.lines)) is not None]
        return max(found, default=None)

    @property
    def share_leaving(self) -> float | None:
        """The share of requests that clients are said to give up, 0 to 1."""
        found = [float(m[1]) / 100 for line in self.lines for m in _LEFT.finditer(line)]
        return max((f for f in found if f <= 1), default=None)

    def slo_seconds(self, name: str) -> float | None:
        """`ttft` or `tpot`."""
        for line in self.lines:
            for m in (*_SLO.finditer(line), *_SLO_BEHIND.finditer(line)):
                if ("tpot" if m[1].lower() == "itl" else m[1].lower()) == name:
                    return float(m[2]) / (1000 if m[3] == "ms" else 1)
        return None


def _speaks(pattern: re.Pattern[str], line: str) -> bool:
    return any(not _DENIED.search(line[: m.start()]) for m in pattern.finditer(line))


def _largest(pattern: re.Pattern[str], lines: Sequence[str]) -> float | None:
    found = [_number(m[1], m[2]) for line in lines for m in pattern.finditer(line)]
    return max((v for v in found if v is not None), default=None)


def _number(text: str, unit: str | None) -> float | None:
    try:
        value = float(re.sub(r"[,_ ]", "", text))
    except ValueError:
        return None
    return value * {"k": 1000, "K": 1024, "M": 1e6}.get(unit or "", 1)
