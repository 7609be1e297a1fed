"""Features and their log: no text of a request in them, bounded files, the row that the predictor reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from middleware.asgi import Engine, Rig
from trimtab.middleware.feature_log import Writer
from trimtab.middleware.features import HASH_MASK, MAX_HASHES, row_of
from trimtab.middleware.policy_file import FeatureLog
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
