"""Whatever breaks, vLLM keeps serving: the policy file, the predictor, slow clients, and a fault inside each hook."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from middleware.asgi import Engine, Rig
from trimtab.middleware import app as app_module
from trimtab.middleware import exchange as exchange_module
from trimtab.middleware.app import Middleware
from trimtab.middleware.policy_file import MAX_FILE_BYTES

BODY = {"prompt": "hi", "max_tokens": 10, "stream": True}
CAP5 = '{"generation": 5, "tokens": {"cap_max_tokens": 5, "lower_client": true}}'


async def limit(rig: Rig) -> int:
    """The limit that the engine gets now."""
    rig.clock.now += 1
    answer = await rig.call(BODY)
    assert answer.status == 200
    return int(rig.engine.seen[-1]["max_tokens"])


async def test_a_missing_file_only_counts_and_is_told(tmp_path: Path) -> None:
    rig = Rig(policy=tmp_path / "none.json")
    assert await limit(rig) == 10
    assert rig.value("trimtab_mw_policy_bad") == 1
    assert "mount the ConfigMap" in rig.core.watch.problem
    (tmp_path / "none.json").write_text(CAP5)
    assert await limit(rig) == 5 and rig.value("trimtab_mw_policy_bad") == 0


@pytest.mark.parametrize(
    "bad",
    [
        CAP5[:30],
        "",
        "[]",
        '{"tokens": {"cap_max_tokens": "5"}}',
        '{"tokens": []}',
        '{"x": 1}',
        " " * (MAX_FILE_BYTES + 5),
    ],
    ids=["half", "empty", "list", "text", "wrong-type", "unknown", "huge"],
)
async def test_a_bad_file_keeps_the_last_good_one_with_a_metric_and_one_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bad: str
) -> None:
    path = tmp_path / "policy.json"
    path.write_text(CAP5)
    rig = Rig(policy=path)
    assert await limit(rig) == 5
    with caplog.at_level(logging.WARNING, "trimtab_mw"):
        path.write_text(bad)
        for _ in range(5):
            assert await limit(rig) == 5
    assert len(caplog.records) == 1 and "generation 5 stays" in caplog.text
    assert rig.value("trimtab_mw_policy_bad") == 1 and rig.value("trimtab_mw_policy_errors_total") == 1
    assert rig.value("trimtab_mw_policy_generation") == 5
    path.write_text(CAP5.replace("5", "6"))
    assert await limit(rig) == 6 and rig.value("trimtab_mw_policy_bad") == 0
    assert rig.value("trimtab_mw_policy_generation") == 6


async def test_the_good_file_put_back_as_it_was_is_good_again(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(CAP5)
    rig = Rig(policy=path)
    await limit(rig)
    path.write_text("{")
    await limit(rig)
    path.write_text(CAP5)
    assert await limit(rig) == 5 and rig.value("trimtab_mw_policy_bad") == 0


async def test_a_symlink_swap_as_of_a_configmap_is_seen(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"v{number}").mkdir()
        (tmp_path / f"v{number}" / "policy.json").write_text(CAP5.replace("5", str(number)))
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "policy.json").symlink_to("..data/policy.json")
    rig = Rig(policy=tmp_path / "policy.json")
    assert await limit(rig) == 1
    (tmp_path / "..new").symlink_to("v2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert await limit(rig) == 2


async def test_the_file_is_looked_at_no_more_than_every_fifth_of_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy.json"
    path.write_text("{}")
    rig = Rig(policy=path)
    looks = 0
    real = os.stat

    def counted(*args: Any, **kwargs: Any) -> os.stat_result:
        nonlocal looks
        looks += args[0] == str(path)
        return real(*args, **kwargs)

    monkeypatch.setattr(os, "stat", counted)
    for _ in range(100):
        rig.clock.now += 0.01
        await rig.call(BODY)
    assert looks <= 5


@pytest.mark.parametrize("content", [b"", b"\x80\x04junk", b"{}", b'{"format": "trimtab-length-predictor"}', None])
async def test_a_corrupt_predictor_is_refused_and_requests_are_served(tmp_path: Path, content: bytes | None) -> None:
    model, path = tmp_path / "model.json", tmp_path / "policy.json"
    if content is not None:
        model.write_bytes(content)
    tokens = {"predicted_level": 0.9, "lower_client": True, "cap_max_tokens": 7}
    path.write_text(json.dumps({"predictor": {"path": str(model)}, "tokens": tokens}))
    rig = Rig(policy=path)
    assert await limit(rig) == 7
    assert rig.value("trimtab_mw_predictor_up") == 0
    assert (
        sum(s.value for m in rig.registry.collect() for s in m.samples if s.name == "trimtab_mw_predictor_errors_total")
        == 1
    )


HOOKS = [
    ("policy", "core.poll"),
    ("begin", "core._look"),
    ("understand", "core.arm_of"),
    ("predict", "core.predict"),
    ("features", "core.feature_row"),
    ("admission", "core.weigh"),
    ("send", "exchange._start"),
    ("finish", "core.finish"),
]


@pytest.mark.parametrize(("hook", "place"), HOOKS, ids=[h[0] for h in HOOKS])
async def test_a_fault_in_a_hook_is_counted_logged_once_and_the_request_is_served(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hook: str, place: str
) -> None:
    rig = Rig(Engine([[1, 2]]))

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError(hook)

    owner, name = place.split(".")
    monkeypatch.setattr(rig.core if owner == "core" else exchange_module.Exchange, name, broken)
    for _number in range(3):
        answer = await rig.call(BODY)
        assert answer.status == 200 and answer.events[-1] == b"data: [DONE]"
    assert rig.engine.seen[-1]["prompt"] == "hi" and rig.engine.seen[-1]["max_tokens"] == 10
    faults = rig.value("trimtab_mw_faults_total", hook=hook)
    assert faults >= 3 or hook == "begin"
    assert len([r for r in caplog.records if "logged once" in r.getMessage()]) == 1
    assert rig.core.gate.running_requests == 0


async def test_a_fault_in_the_gauges_does_not_keep_a_scrape_from_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(Engine([[1]]))
    monkeypatch.setattr(rig.core, "show", lambda: 1 / 0)
    assert (await rig.call(b"{}", "/metrics", method="GET")).status == 200
    monkeypatch.undo()
    assert rig.value("trimtab_mw_faults_total", hook="metrics") == 1


async def test_a_fault_in_the_meter_ends_counting_not_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    from trimtab.middleware.stream import OpenAIEvents

    def broken(self: Any, event: bytes) -> bytes:
        raise IndexError

    monkeypatch.setattr(OpenAIEvents, "_event", broken)
    rig = Rig(Engine([[1, 2]]))
    answer = await rig.call(BODY)
    assert answer.events[-1] == b"data: [DONE]" and len(answer.events) == 4
    assert rig.value("trimtab_mw_faults_total", hook="send") == 1


async def test_a_middleware_that_cannot_start_lets_everything_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise ValueError("Duplicated timeseries")

    monkeypatch.setattr(app_module, "Core", broken)
    rig = Rig()
    rig.app = Middleware(rig.engine)
    assert (await rig.call(BODY)).status == 200


async def test_other_scopes_pass() -> None:
    seen = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    rig = Rig(inner)
    for kind in ("lifespan", "websocket"):
        await rig.app({"type": kind}, None, None)  # type: ignore[arg-type]
    assert seen == ["lifespan", "websocket"]


async def test_a_client_that_never_reads_holds_only_its_own_request() -> None:
    """Back pressure is the server's: its send waits, and so does this stream, but no other."""
    rig = Rig(Engine([[1] * 50]))
    stuck = asyncio.Event()

    async def never(message: Any) -> None:
        await stuck.wait()

    async def receive() -> Any:
        return {"type": "http.request", "body": json.dumps(BODY).encode(), "more_body": False}

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "client": ("a", 1)}
    task = asyncio.ensure_future(rig.app(scope, Replay(receive), never))
    await asyncio.sleep(0.01)
    assert not task.done()
    for _ in range(5):
        assert (await rig.call(BODY)).status == 200
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert rig.core.gate.running_requests == 0
    assert rig.by_ending("trimtab_mw_requests_total") == {"stop": 5, "error": 1}


class Replay:
    """A receive that gives one message and then waits for ever."""

    def __init__(self, first: Any) -> None:
        self._first, self._given = first, False

    async def __call__(self) -> Any:
        if self._given:
            await asyncio.Event().wait()
        self._given = True
        return await self._first()


@pytest.mark.slow
async def test_ten_thousand_streams_at_once_are_counted_exactly() -> None:
    rig = Rig(Engine([[1, 2, 3, 1]]))
    rig.engine.gate = asyncio.Event()
    calls = [
        asyncio.ensure_future(rig.call(BODY, leave_after=2 if n % 10 < 3 else None, client=("10.0.0.1", n)))
        for n in range(10_000)
    ]
    while len(rig.engine.seen) < 10_000:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    assert rig.value("trimtab_mw_running_sequences") == 10_000
    rig.engine.pause = lambda _: asyncio.sleep(0)
    rig.engine.gate.set()
    await asyncio.gather(*calls)
    assert rig.by_ending("trimtab_mw_requests_total") == {"stop": 7_000, "client_cancel": 3_000}
    assert rig.by_ending("trimtab_mw_generated_tokens_total") == {"stop": 49_000, "client_cancel": 9_000}
    assert rig.value("llm_useful_token_ratio") == 49_000 / 100_000
    assert rig.core.gate.running_requests == 0
