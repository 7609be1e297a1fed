"""The policy file: what the middleware does to requests, re-read while the engine serves. JSON, at most 1 MiB.

Every field is declared once, below, and gives the dataclass, the check, the JSON Schema (`json_schema()`) and the table
in docs/middleware.md. Pure: `parse` reads no file. An empty object is the policy that only counts.

`EXAMPLE` is a whole file. A token field is taken from the first of these that sets it: the rules of the request's arm,
the arm's `tokens`, the rules, `tokens`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from .table import FieldError, choice, flag, nested, number, read, schema, several, text, texts, whole

MAX_FILE_BYTES = 1 << 20
ROUTES = ("completions", "chat", "responses", "messages")
#: no engine serves more; keeps sums far from any integer limit
MAX_TOKENS = 16_777_216
MAX_ARMS = 8

EXAMPLE = """{
  "version": 1,
  "generation": 12,
  "tokens": {"default_max_tokens": 1024, "cap_max_tokens": 4096, "lower_client": false},
  "rules": [
    {"match": {"route": "chat", "model": "qwen3*"}, "tokens": {"default_thinking_tokens": 2000}},
    {"match": {"header": "x-tier", "header_value": "free"}, "tokens": {"cap_max_tokens": 512, "lower_client": true}}
  ],
  "admission": {"max_sequences": 48, "kv_budget_tokens": 120000, "risk": 1.0, "max_queued": 256, "queue_seconds": 30},
  "experiment": {"name": "caps-7", "arms": [
    {"name": "control", "percent": 50},
    {"name": "trial", "percent": 50, "tokens": {"cap_max_tokens": 2048}}
  ]}
}"""


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Limits of one request's output. Absent fields leave the request as it is."""

    default_max_tokens: int | None = whole("limit for a request that names none", 1, MAX_TOKENS)
    cap_max_tokens: int | None = whole("highest limit; lowers a client's own only with lower_client", 1, MAX_TOKENS)
    lower_client: bool | None = flag("also lower limits that the client asked for (a response header tells it)")
    default_thinking_tokens: int | None = whole(
        "thinking budget for a request that names none; the engine needs a reasoning parser", 0, MAX_TOKENS
    )
    cap_thinking_tokens: int | None = whole(
        "highest thinking budget; lowers a client's own only with lower_client", 0, MAX_TOKENS
    )
    predicted_level: float | None = number(
        "also cap at this quantile of the predicted output length (needs predictor)", 0.01, 0.999
    )
    predicted_margin: float | None = number("times the predicted quantile", 1.0, 10.0)


@dataclasses.dataclass(frozen=True)
class Match:
    """Which requests a rule is for: all named conditions hold."""

    route: str | None = choice("the API", ROUTES)
    model: str | None = text("the request's model; a * at the end stands for any rest")
    header: str | None = text("a request header that must be there (lower case)")
    header_value: str | None = text("its value; a * at the end stands for any rest")


@dataclasses.dataclass(frozen=True)
class Rule:
    """Limits for some requests."""

    match: Match = nested("which requests", Match, Match())
    tokens: Tokens = nested("their limits", Tokens, Tokens())


@dataclasses.dataclass(frozen=True)
class Admission:
    """What may run in the engine at once, and how the rest waits. Per API server process."""

    max_sequences: int | None = whole("sequences (n x prompts of a request) in the engine at once", 1, 100_000)
    kv_budget_tokens: int | None = whole(
        "tokens of KV cache: admit while the expected peak of all running requests fits", 1, 1 << 40
    )
    risk: float | None = number("factor on kv_budget_tokens; above 1 admits more and risks preemption", 0.1, 10.0)
    deviations: float | None = number(
        "standard deviations of the summed output lengths that must fit too (default 0)", 0.0, 6.0
    )
    estimate: str | None = choice(
        "expected output: of the predictor, of finished requests, or the limit (default: the best there is)",
        ("predicted", "observed", "max_tokens"),
    )
    expected_tokens_header: str | None = text("request header whose whole number is taken as the expected output")
    max_queued: int | None = whole("requests that may wait; more get 429 (default 1024)", 0, 1_000_000)
    queue_seconds: float | None = number("longest wait, then 429 (default 60)", 0.0, 3600.0)
    retry_after_seconds: float | None = number("Retry-After of a 429 (default 1)", 1.0, 3600.0)
    client_header: str | None = text("clients, served in turn, are told apart by it (default authorization)")


@dataclasses.dataclass(frozen=True)
class Arm:
    """One side of an experiment: some pods, or a share of the requests of every pod."""

    name: str = text("label of the arm in the counters", longest=40, required=True)
    percent: float | None = number("share of the requests; the shares of all arms add up to 100", 0.0, 100.0)
    pods: tuple[str, ...] = texts("names of the pods (POD_NAME, or the host name)", 1000)
    tokens: Tokens = nested("limits that replace the file's", Tokens, Tokens())
    rules: tuple[Rule, ...] = several("rules that come before the file's", Rule, 100)
    admission: Admission | None = nested("admission fields that replace the file's; arms by pods only", Admission)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Arms that run side by side. With `pods`, pods that no arm names are in the first arm without pods."""

    name: str = text("name of the experiment; another name deals the requests anew", longest=80, required=True)
    split_by: str | None = choice("what is dealt: each request, or each client", ("request", "client"))
    arms: tuple[Arm, ...] = several("at least two arms", Arm, MAX_ARMS)


@dataclasses.dataclass(frozen=True)
class Predictor:
    """The exported length predictor."""

    path: str = text("file of trimtab predict, as seen in the engine's container", longest=4096, required=True)


@dataclasses.dataclass(frozen=True)
class FeatureLog:
    """Opt-in log for training a predictor: features and lengths, never text."""

    path: str = text("file, as seen in the engine's container; JSON lines", longest=4096, required=True)
    max_bytes: int = whole("size at which it is rotated to PATH.1", 65_536, 1 << 34, 67_108_864)
    percent: float = number("share of requests that is logged", 0.0, 100.0, 100.0)


@dataclasses.dataclass(frozen=True)
class Policy:
    """The whole file."""

    version: int = whole("format of the file", 1, 1, 1)
    generation: int = whole("number that the writer raises with each change; shown in the metrics", 0, 1 << 53, 0)
    counting: str = choice(
        "exact: ask vLLM for running token counts and take them out again; final: counts at the end only; "
        "passive: never touch a stream",
        ("exact", "final", "passive"),
        "exact",
    )
    max_body_bytes: int = whole("larger request bodies pass unseen", 1024, 1 << 30, 8_388_608)
    max_model_len: int | None = whole("the engine's, where it cannot be read from vLLM", 1, MAX_TOKENS)
    tokens: Tokens = nested("limits for all requests", Tokens, Tokens())
    rules: tuple[Rule, ...] = several("limits for some requests; first match sets a field", Rule, 100)
    admission: Admission = nested("what may run at once", Admission, Admission())
    experiment: Experiment | None = nested("arms side by side", Experiment)
    predictor: Predictor | None = nested("length predictor", Predictor)
    feature_log: FeatureLog | None = nested("log for training", FeatureLog)
    #: of the file's bytes, 12 hex digits; not a field of the file
    digest: str = dataclasses.field(default="", metadata={"trimtab": None}, init=False, compare=False)


def json_schema() -> dict[str, Any]:
    """JSON Schema of the file. `parse` checks more: sums and combinations that a schema cannot say."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Trimtab policy", **schema(Policy)}


def parse(data: bytes) -> Policy:
    """A policy from a file's bytes; `FieldError` names the field and the fix."""
    if len(data) > MAX_FILE_BYTES:
        raise FieldError("policy", f"has {len(data)} bytes", f"Give at most {MAX_FILE_BYTES}")
    try:
        body = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise FieldError("policy", f"is not JSON ({error})", "Write the file anew, whole, as UTF-8 JSON") from error
    policy = read(Policy, body)
    if policy.experiment is not None:
        _check_arms(policy.experiment)
    _check_match("rules", policy.rules)
    if policy.predictor is None and _predicts(policy):
        raise FieldError("predictor", "is missing but predictions are asked for", "Add predictor.path")
    object.__setattr__(policy, "digest", hashlib.sha256(data).hexdigest()[:12])
    return policy


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _check_match(where: str, rules: tuple[Rule, ...]) -> None:
    for number_, rule in enumerate(rules):
        if rule.match.header_value is not None and rule.match.header is None:
            raise FieldError(f"{where}[{number_}].match.header", "is missing", "Name the header of header_value")


def _predicts(policy: Policy) -> bool:
    arms = policy.experiment.arms if policy.experiment else ()
    tokens = [policy.tokens, *(r.tokens for r in policy.rules)]
    tokens += [t for arm in arms for t in (arm.tokens, *(r.tokens for r in arm.rules))]
    admissions = [policy.admission, *(arm.admission for arm in arms if arm.admission)]
    return any(t.predicted_level for t in tokens) or any(a.estimate == "predicted" for a in admissions)


def _check_arms(experiment: Experiment) -> None:
    arms = experiment.arms
    if len(arms) < 2:
        raise FieldError("experiment.arms", f"has {len(arms)} entries", "Give at least two")
    if len({arm.name for arm in arms}) < len(arms):
        raise FieldError("experiment.arms", "has two arms of one name", "Give each arm its own name")
    by_pods = any(arm.pods for arm in arms)
    pods = [pod for arm in arms for pod in arm.pods]
    if len(set(pods)) < len(pods):
        raise FieldError("experiment.arms", "name a pod twice", "Name each pod in one arm")
    for number_, arm in enumerate(arms):
        where = f"experiment.arms[{number_}]"
        _check_match(f"{where}.rules", arm.rules)
        if by_pods and arm.percent is not None:
            raise FieldError(f"{where}.percent", "is given while arms name pods", "Use percent or pods, not both")
        if not by_pods and arm.percent is None:
            raise FieldError(f"{where}.percent", "is missing", "Give each arm its share, or name pods")
        if arm.admission is not None and not by_pods:
            raise FieldError(
                f"{where}.admission",
                "is given while arms share each pod's engine",
                "Compare admission between pods: name pods instead of percent",
            )
    if by_pods and sum(1 for arm in arms if not arm.pods) > 1:
        raise FieldError("experiment.arms", "has more than one arm without pods", "Name the pods of all arms but one")
    total = sum(arm.percent or 0.0 for arm in arms)
    if not by_pods and abs(total - 100.0) > 0.01:
        raise FieldError("experiment.arms", f"have shares of {total:g} percent in all", "Make them add up to 100")
