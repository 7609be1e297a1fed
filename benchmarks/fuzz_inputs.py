"""What `fuzz.py` feeds to whom: one entry per kind of input that people, engines and stores hand to Trimtab.

Each entry makes an input from a random generator, tries it, and says "taken" or "refused". A refusal is one of our own
errors that says where and what to do; anything else that comes out is a crash.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / name) for name in ("", "engine_room", "observe", "lint")]

from lint_cases import HEALTHY  # noqa: E402
from metric_texts import samples  # noqa: E402
from text_mutants import mutated  # noqa: E402

from control_plane import ApiError, ControlPlane, object_path  # noqa: E402
from mutations import damaged, damaged_text  # noqa: E402
from stand_in_prometheus import StandInPrometheus  # noqa: E402
from template_mutants import mutant  # noqa: E402
from trimtab.engine.command import parse_template  # noqa: E402
from trimtab.engine.kv import LayoutOptions, lay_out  # noqa: E402
from trimtab.engine.model_config import ModelConfig  # noqa: E402
from trimtab.engine.patch import paste_ready  # noqa: E402
from trimtab.engine.rewrite import rewrite  # noqa: E402
from trimtab.errors import InputError, SpecError, TrimtabError  # noqa: E402
from trimtab.lint.as_json import as_json  # noqa: E402
from trimtab.lint.finding import Options  # noqa: E402
from trimtab.lint.report import lint  # noqa: E402
from trimtab.load.readers import read_trace  # noqa: E402
from trimtab.load.trace import parse_steps  # noqa: E402
from trimtab.manifests.documents import read_documents  # noqa: E402
from trimtab.middleware.policy_file import EXAMPLE  # noqa: E402
from trimtab.middleware.policy_file import parse as parse_policy  # noqa: E402
from trimtab.middleware.table import FieldError  # noqa: E402
from trimtab.observe.mapping import fleet, observe  # noqa: E402
from trimtab.observe.prometheus import PrometheusSource  # noqa: E402
from trimtab.observe.samples import PodRef  # noqa: E402
from trimtab.plan.spec import TunerSpec  # noqa: E402
from trimtab.plan.trial import guardrail_limits, objective  # noqa: E402
from trimtab.simulate.config import EngineConfig, StepTimes  # noqa: E402
from trimtab.simulate.lengths import Lengths  # noqa: E402
from trimtab.simulate.profile import LoadModel, Profile, SharedPrefix, parse_profile  # noqa: E402
from trimtab.tune.writing import space_of  # noqa: E402
from trimtab_operator.wishes import policy_label, search_hash  # noqa: E402

Try = Callable[[random.Random], str]
TAKEN, REFUSED = "taken", "refused"
#: a Monday, noon
NOW: Final = 1_800_000_000.0


class Vague(AssertionError):
    """An error of our own that does not say where or what to do."""


def told(error: TrimtabError | FieldError) -> str:
    """A refusal, if it names what people need."""
    fix = error.fix if isinstance(error, InputError | FieldError) else error.hint
    where = error.field if isinstance(error, InputError | FieldError) else str(error)
    if not where.strip() or not fix.strip() or len(str(error)) > 20_000:
        raise Vague(f"{type(error).__name__}: {str(error)[:300]!r}, fix {fix[:100]!r}") from error
    return REFUSED


# --- specs ------------------------------------------------------------------------------------------------------------
def _specs() -> list[Any]:
    found = [yaml.safe_load(p.read_text())["spec"] for p in sorted((ROOT / "examples").glob("tuner-*.yaml"))]
    whole = {
        "targetRef": {"name": "llm", "container": "vllm"}, "mode": "Auto", "suspend": False,
        "metrics": {"prometheus": {"url": "http://p:9090", "bearerTokenSecretRef": {"name": "s", "key": "k"}}},
        "objective": {
            "slo": {"ttftSeconds": 2.0, "tpotSeconds": 0.1}, "weights": {"ttft": 0.1}, "variation": {"podPercent": 3},
            "limits": {"ttftP99Seconds": 9, "errorPercent": 1, "truncatedPercent": 5},
        },
        "search": {
            "maxNumSeqs": {"min": 4, "max": 512}, "maxNumBatchedTokens": {"min": 512, "max": 8192}, "seed": 3,
            "candidates": [{"maxNumSeqs": 64, "enablePrefixCaching": True}], "sampler": "TPE", "horizonHours": 12,
        },
        "tokenPolicy": {
            "middleware": "Install", "method": "Percentile", "maxNewTokens": {"min": 16, "max": 2048},
            "policy": {
                "tokens": {"capMaxTokens": 900},
                "rules": [
                    {"match": {"route": "chat", "header": "x-t", "headerValue": "b"}, "tokens": {"capMaxTokens": 9}},
                ],
            },
        },
        "rollout": {
            "windows": [{"days": ["Mon"], "start": "22:00", "end": "04:00", "timeZone": "Europe/Berlin"}],
            "maxSurge": 1, "warmupSeconds": 60, "measurementSeconds": 120, "maxMeasurementSeconds": 300,
        },
        "guardrails": {"maxErrorPercent": 1, "maxLatencyRatio": 2}, "preconditions": {"stableSeconds": 10},
        "output": {"configMap": "advice"}, "storage": {"url": "postgresql://h/db"}, "trialHistoryLimit": 9,
    }  # fmt: skip
    return [*found, whole]


SPECS: Final = _specs()


def spec(rng: random.Random) -> str:
    return read_spec(damaged(rng, rng.choice(SPECS)))


def read_spec(value: Any) -> str:
    """Parsed, and put to everything that only reads it."""
    try:
        read = TunerSpec.parse(value)
    except SpecError as error:
        assert error.field.startswith("spec"), error.field
        return told(error)
    search_hash(read), policy_label(read), space_of(read), guardrail_limits(read), objective(read)
    read.window_open(NOW), read.token_policy.body()
    return TAKEN


def spec_by_api(plane: ControlPlane, namespace: str) -> Try:
    """A dry run of the real API server: it refuses it, or what it makes of it is taken by the operator, too."""

    def attempt(rng: random.Random) -> str:
        body = {
            "apiVersion": "trimtab.dev/v1alpha1", "kind": "VLLMTuner", "metadata": {"name": "fuzz"},
            "spec": damaged(rng, rng.choice(SPECS)),
        }  # fmt: skip
        try:
            made = plane.request("POST", object_path("VLLMTuner", namespace) + "?dryRun=All", body)
        except ApiError as error:
            if error.status not in (400, 422):
                raise
            return REFUSED
        return read_spec(made["spec"])

    return attempt


# --- engines ----------------------------------------------------------------------------------------------------------
def arguments(rng: random.Random) -> str:
    """A pod template: command, args, scripts, environment, mounted files."""
    template, files = mutant(rng)
    changes = {"max_num_seqs": 9, "max_new_tokens": 5, "enable_prefix_caching": None}
    try:
        parse_template(template, files=files).configuration()
        after = rewrite(template, changes, files=files)
        paste_ready(template, after, "a", "b")
    except TrimtabError as error:
        return told(error)
    return TAKEN


CONFIG: Final = {
    "model_type": "gemma3_text", "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1,
    "head_dim": 256, "hidden_size": 1152, "sliding_window": 512, "sliding_window_pattern": 6, "torch_dtype": "bfloat16",
    "max_position_embeddings": 32768, "text_config": {"num_hidden_layers": 2, "num_attention_heads": 2},
    "layer_types": ["full_attention", "sliding_attention"], "quantization_config": {"quant_method": "fp8"},
    "kv_lora_rank": 512, "qk_rope_head_dim": 64,
}  # fmt: skip


def model_config(rng: random.Random) -> str:
    """A config.json of a model."""
    kept = {k: v for k, v in CONFIG.items() if rng.random() < 0.8}
    try:
        lay_out(
            ModelConfig.from_hf(damaged(rng, kept)), LayoutOptions(block_size=16, tensor_parallel=rng.choice((1, 2)))
        )
    except TrimtabError as error:
        return told(error)
    return TAKEN


# --- metrics ----------------------------------------------------------------------------------------------------------
def metrics_text(rng: random.Random) -> str:
    """Two scrapes of /metrics."""
    texts = [mutated(rng).decode(errors="replace") for _ in range(2)]
    seen = observe(samples((0.0, texts[0]), (60.0, texts[1])), "p", 0.0, 60.0)
    return REFUSED if seen is None else TAKEN


class _Answers:
    """Stands where the Prometheus client stands."""

    def __init__(self) -> None:
        self.result: Any = []

    def custom_query(self, *_: Any, **__: Any) -> Any:
        return self.result

    custom_query_range = custom_query


def prometheus_answer() -> Try:
    """A result of Prometheus for two pods."""
    source, client = PrometheusSource("http://p"), _Answers()
    source._client = client
    pods = [PodRef(f"llm-{i}", "ns", "10.0.0.1", 8000) for i in (1, 2)]
    asked = '/api/v1/query?query={namespace=~"ns",pod=~"llm-1|llm-2"}[120000ms]' + f"&time={NOW}"
    whole = StandInPrometheus(lambda *_: 1.0, 15.0).answer(asked)["data"]["result"]
    few = [s for s in whole if "bucket" not in s["metric"]["__name__"]][:30]

    def attempt(rng: random.Random) -> str:
        client.result = damaged(rng, rng.sample(few, 6) + rng.sample(whole, 6))
        try:
            fleet(source.fetch(pods, NOW - 60, NOW, 1.0), [p.name for p in pods], NOW - 60, NOW)
        except TrimtabError as error:
            return told(error)
        return TAKEN

    return attempt


# --- files of people --------------------------------------------------------------------------------------------------
def policy_file(rng: random.Random) -> str:
    """The middleware's policy, as JSON and as bytes."""
    text = (
        json.dumps(damaged(rng, json.loads(EXAMPLE))).encode()
        if rng.random() < 0.6
        else damaged_text(rng, EXAMPLE.encode())
    )
    try:
        parse_policy(text)
    except FieldError as error:
        return told(error)
    return TAKEN


AZURE: Final = b"TIMESTAMP,ContextTokens,GeneratedTokens\n" + b"".join(
    b"2023-11-16 18:15:4%d.6805900,%d,%d\n" % (i, 100 * i + 7, i + 9) for i in range(9)
)
MOONCAKE: Final = b"".join(
    json.dumps(
        {"timestamp": 500 * i, "input_length": 900 + i, "output_length": 50, "hash_ids": [1, 2 + i % 2]}
    ).encode()
    + b"\n"
    for i in range(9)
)


def trace(folder: Path) -> Try:
    """Azure CSV and Mooncake JSONL."""

    def attempt(rng: random.Random) -> str:
        kind, text = rng.choice((("azure", AZURE), ("mooncake", MOONCAKE)))
        path = folder / "trace"
        path.write_bytes(damaged_text(rng, text))
        try:
            read_trace(f"{kind}:{path}")
        except TrimtabError as error:
            return told(error)
        return TAKEN

    return attempt


def rate_steps(rng: random.Random) -> str:
    """`--rate 2@30,8@60,2`."""
    try:
        parse_steps(damaged_text(rng, b"2@30,8@60,2", 3).decode(errors="replace"))
    except TrimtabError as error:
        return told(error)
    return TAKEN


PROFILE: Final = Profile(
    engine=EngineConfig(900, max_num_seqs=64), times=StepTimes(0.01, 1e-5, 1e-5, 0.0),
    workload=LoadModel(
        requests_per_second=2.0, prompt_tokens=Lengths.of(range(10, 40)), output_tokens=Lengths.of(range(5, 25)),
        max_tokens=Lengths.of([64]), shared_prefix=SharedPrefix(share=0.5, tokens=64), patience_seconds=9.0,
    ),
).model_dump_json()  # fmt: skip


def profile(rng: random.Random) -> str:
    """A target's profile (`trimtab calibrate`)."""
    text = json.dumps(damaged(rng, json.loads(PROFILE)))
    if rng.random() < 0.3:
        text = damaged_text(rng, PROFILE.encode()).decode(errors="replace")
    try:
        parse_profile(text, "profile.json")
    except TrimtabError as error:
        return told(error)
    return TAKEN


def manifest(rng: random.Random) -> str:
    """YAML for `trimtab lint`."""
    text = yaml.safe_dump(damaged(rng, HEALTHY))
    if rng.random() < 0.5:
        text = damaged_text(rng, text.encode()).decode(errors="replace")
    try:
        json.dumps(as_json(lint(read_documents(text, "x.yaml"), Options()), []))
    except TrimtabError as error:
        return told(error)
    return TAKEN


@contextmanager
def kinds() -> Iterator[Mapping[str, Try]]:
    """All but the one that needs a cluster, by the name in the table."""
    with tempfile.TemporaryDirectory() as folder:
        yield {
            "specs": spec, "pod templates: args, scripts, env": arguments, "metrics texts": metrics_text,
            "answers of Prometheus": prometheus_answer(), "policy files": policy_file, "traces": trace(Path(folder)),
            "--rate": rate_steps, "profiles": profile, "config.json of a model": model_config,
            "manifests for lint": manifest,
        }  # fmt: skip


def timed(attempt: Try, rng: random.Random) -> tuple[str, float]:
    """Outcome and seconds of CPU."""
    began = time.thread_time()
    return attempt(rng), time.thread_time() - began
