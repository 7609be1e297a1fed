"""Features and their log: no text of a request in them, bounded files, the row that the predictor reads."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import struct
from pathlib import Path
from typing import Any

from middleware.asgi import Engine, Rig
from trimtab.middleware.feature_log import Writer
from trimtab.middleware.features import HASH_MASK, MAX_HASHES, row_of
from trimtab.middleware.limits import Limits
from trimtab.middleware.policy_file import FeatureLog
from trimtab.middleware.quantile_model import FORMAT, VERSION, canonical
from trimtab.middleware.wire import understand

SECRET = "the patient Willibald Zwetschge owes 4711 kroner"


def row(route: str = "chat", **body: Any) -> dict[str, Any]:
    request = understand(route, body)
    assert request is not None
    return row_of(request)


def test_a_row_holds_numbers_and_hashes_and_no_text() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": SECRET}]
    asked = {"stop": ["a", "b"], "max_tokens": 9, "response_format": {"type": "json_object"}}
    got = row(messages=messages, temperature=0.5, tools=[{}, {}], **asked)
    assert (got["tools"], got["stop"], got["max_tokens"], got["structured"], got["messages"]) == (2, 2, 9, True, 2)
    assert all(0 <= h <= HASH_MASK for h in got["hashes"]) and len(got["hashes"]) <= MAX_HASHES
    text = json.dumps(got).lower()
    assert not [word for word in SECRET.lower().split() if len(word) > 4 and word in text]


def test_the_last_message_is_told_from_the_first_and_long_prompts_cost_no_more() -> None:
    one = row(messages=[{"content": "sort"}, {"content": "list"}])["hashes"]
    other = row(messages=[{"content": "list"}, {"content": "sort"}])["hashes"]
    assert set(one).isdisjoint(other)
    assert len(row(messages=[{"content": "word " * 100_000}])["hashes"]) <= MAX_HASHES


async def test_the_log_has_what_the_predictor_is_trained_on(tmp_path: Path) -> None:
    log = tmp_path / "features.jsonl"
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"feature_log": {"path": str(log)}}))
    rig = Rig(Engine([[1, 2], [3, 4]]), policy=policy)
    await rig.call({"prompt": SECRET, "max_tokens": 10, "n": 2, "stream": True, "model": "tiny"})
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == 1
    assert lines[0]["output_tokens"] == 7 and lines[0]["ending"] == "stop" and lines[0]["cap_tokens"] == 10
    assert lines[0]["model"] == "tiny" and lines[0]["at"] == 5.0e8
    assert "Willibald" not in log.read_text()
    assert rig.value("trimtab_mw_feature_rows_total") == 1


def test_two_files_of_bounded_size(tmp_path: Path) -> None:
    writer = Writer()
    writer.configure(FeatureLog(path=str(tmp_path / "f"), max_bytes=65_536))
    for number in range(3000):
        assert writer.write({"x": "y" * 80, "n": number})
    files = sorted(p.name for p in tmp_path.iterdir())
    assert files == ["f", "f.1"] and all(p.stat().st_size <= 65_536 for p in tmp_path.iterdir())


def test_a_log_that_cannot_be_written_is_off_until_the_policy_changes(tmp_path: Path) -> None:
    writer = Writer()
    writer.configure(FeatureLog(path=str(tmp_path / "no" / "f")))
    assert writer.wants(0.0) and not writer.write({}) and not writer.wants(0.0)
    writer.configure(FeatureLog(path=str(tmp_path / "f")))
    assert writer.wants(0.0) and writer.write({})


def test_a_share_of_the_requests_is_logged() -> None:
    writer = Writer()
    writer.configure(FeatureLog(path="f", percent=25.0))
    assert [writer.wants(c) for c in (0.0, 0.2499, 0.25, 0.9)] == [True, True, False, False]


def model(path: Path, tokens: tuple[float, float]) -> None:
    """A predictor file that says the same for every request: these tokens at the levels 0.5 and 0.9."""

    def tensor(rows: int, columns: int, values: list[float]) -> dict[str, Any]:
        return {"shape": [rows, columns], "f32": base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()}

    step = math.log(math.expm1(math.log(tokens[1] / tokens[0])))  # softplus of it is the step
    tensors = {"embedding": tensor(1, 1, [0.0]), "weight.0": tensor(2, 1, [0.0, 0.0])}
    tensors["bias.0"] = tensor(2, 1, [math.log(tokens[0]), step])
    body: dict[str, Any] = {
        "format": FORMAT, "version": VERSION, "levels": [0.5, 0.9], "offsets": [0.0, 0.0], "max_tokens": 10_000,
        "features": {"dense": [], "mean": [], "scale": [], "buckets": 1, "max_hashes": 4},
        "tensors": tensors, "summary": {},
    }  # fmt: skip
    path.write_text(json.dumps({**body, "sha256": hashlib.sha256(canonical(body)).hexdigest()}))


async def test_a_predictor_caps_each_request_is_reloaded_and_survives_a_bad_file(tmp_path: Path) -> None:
    file, policy = tmp_path / "model.json", tmp_path / "policy.json"
    model(file, (40.0, 99.9))
    tokens = {"predicted_level": 0.9, "predicted_margin": 1.5, "lower_client": True}
    policy.write_text(json.dumps({"predictor": {"path": str(file)}, "tokens": tokens}))
    rig = Rig(Engine([[1, 2]]), policy=policy)

    async def limit() -> str:
        rig.clock.now += 5
        answer = await rig.call({"prompt": "hello", "max_tokens": 400})
        return answer.headers["x-trimtab-max-tokens"]

    assert await limit() == "400->150; predicted"
    model(file, (10.0, 19.9))
    assert await limit() == "400->30; predicted"
    file.write_bytes(b"junk")
    assert await limit() == "400->30; predicted"
    assert rig.value("trimtab_mw_predictor_up") == 1
    assert rig.value("trimtab_mw_predictor_errors_total", reason="not-json") == 1


async def test_kv_admission_weighs_by_the_prediction(tmp_path: Path) -> None:
    file, policy = tmp_path / "model.json", tmp_path / "policy.json"
    model(file, (40.0, 100.0))
    policy.write_text(json.dumps({"predictor": {"path": str(file)}, "admission": {"kv_budget_tokens": 1000}}))
    rig = Rig(Engine([[1, 2]]), policy=policy)
    request = understand("completions", {"prompt": [1] * 10, "max_tokens": 5000, "n": 2})
    assert request is not None
    prediction = rig.core.predict(request)
    ticket = rig.core.weigh(request, Limits(5000), prediction, {}.get)
    assert prediction is not None
    mean, variance = prediction.moments()
    assert 30 < mean < 60
    assert (ticket.sequences, ticket.prompt, ticket.mean, ticket.variance) == (2, 10, mean, variance)
