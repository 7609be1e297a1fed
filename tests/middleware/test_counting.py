"""Requests through the middleware on a fake engine: what is counted, changed, and what the client sees."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from middleware.asgi import Engine, Rig

STREAM = {"prompt": "hi", "stream": True, "max_tokens": 10}
WHOLE = {"prompt": "hi", "max_tokens": 10}


def policy(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "policy.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


async def test_useful_reserved_and_their_ratio_over_all_endings() -> None:
    rig = Rig(Engine([[1, 2, 3]]))
    await rig.call(STREAM)
    await rig.call(WHOLE)
    await rig.call(STREAM, leave_after=2)
    rig.engine.status = 400
    await rig.call(WHOLE)
    rig.engine.status = 500
    await rig.call(WHOLE)
    rig.engine.status = 504
    await rig.call(WHOLE)
    assert rig.by_ending("trimtab_mw_requests_total") == {
        "stop": 2, "client_cancel": 1, "rejected": 1, "error": 1, "timeout": 1,
    }  # fmt: skip
    assert rig.by_ending("trimtab_mw_generated_tokens_total") == {"stop": 12, "client_cancel": 3}
    assert rig.value("llm_useful_tokens_total") == 12
    assert rig.value("llm_reserved_tokens_total") == 50
    assert rig.value("llm_useful_token_ratio") == 12 / 50


async def test_tokens_of_those_that_left_are_wasted_those_that_came_after_too() -> None:
    rig = Rig(Engine([[1, 2, 3, 4, 5]]))
    rig.engine.pause = lambda _: asyncio.sleep(0)
    await rig.call(STREAM, leave_after=3)
    sent = rig.by_ending("trimtab_mw_generated_tokens_total")["client_cancel"]
    late = rig.value("trimtab_mw_after_disconnect_tokens_total", arm="none", route="completions")
    assert sent == 6
    assert rig.by_ending("trimtab_mw_wasted_tokens_total") == {"client_cancel": sent + late}
    assert rig.value("trimtab_mw_disconnect_to_stop_seconds_count") == 1
    assert rig.engine.stopped == 1


async def test_a_client_that_leaves_after_the_last_token_has_its_answer() -> None:
    rig = Rig(Engine([[2, 2]]))
    await rig.call(STREAM, leave_after=2)
    assert rig.by_ending("trimtab_mw_requests_total") == {"stop": 1}
    assert rig.value("llm_useful_tokens_total") == 4


@pytest.mark.parametrize("body", [STREAM, WHOLE])
async def test_stop_sequence_limit_and_end_of_text_are_told_apart(body: dict[str, Any]) -> None:
    rig = Rig()
    for reason, stop in [("stop", "null"), ("stop", '"#"'), ("length", "null"), ("abort", "null")]:
        rig.engine.reason, rig.engine.stop_reason = reason, stop
        await rig.call(body)
    assert rig.by_ending("trimtab_mw_requests_total") == {"stop": 1, "stop_sequence": 1, "length": 1, "error": 1}


async def test_batches_and_n_multiply_what_is_reserved_and_all_choices_count() -> None:
    rig = Rig(Engine([[1, 1], [2, 2], [3, 3], [4, 4]]))
    await rig.call({**STREAM, "prompt": ["a", "b"], "n": 2})
    await rig.call({**WHOLE, "prompt": ["a", "b"], "n": 2})
    assert rig.value("llm_reserved_tokens_total") == 80
    assert rig.value("llm_useful_tokens_total") == 40
    assert rig.value("trimtab_mw_output_tokens_count", arm="none", route="completions") == 4 + 1


async def test_one_cut_choice_of_many_is_a_cancelled_request() -> None:
    rig = Rig(Engine([[1], [1, 1, 1]]))
    await rig.call({**STREAM, "n": 2}, leave_after=3)
    assert rig.by_ending("trimtab_mw_requests_total") == {"client_cancel": 1}


async def test_an_engine_that_raises_is_an_error_and_the_exception_travels_on() -> None:
    rig = Rig()
    rig.engine.raises = RuntimeError("engine")
    with pytest.raises(RuntimeError, match="engine"):
        await rig.call(WHOLE)
    assert rig.by_ending("trimtab_mw_requests_total") == {"error": 1}
    assert rig.core.gate.running_requests == 0


async def test_a_cancelled_whole_answer_is_told_to_be_inexact() -> None:
    rig = Rig()
    rig.engine.gate = leave = asyncio.Event()
    leave = asyncio.Event()
    call = asyncio.ensure_future(rig.call(WHOLE, leave=leave))
    await asyncio.sleep(0.01)
    leave.set()
    await call
    assert rig.by_ending("trimtab_mw_requests_total") == {"client_cancel": 1}
    assert rig.value("trimtab_mw_inexact_requests_total", reason="not_streamed") == 1


@pytest.mark.parametrize(
    ("options", "final", "each"),
    [
        (None, False, False),
        ({"include_usage": True}, True, False),
        ({"include_usage": True, "continuous_usage_stats": True}, True, True),
    ],
)
async def test_the_client_gets_the_usage_it_asked_for_and_no_other(
    options: dict[str, bool] | None, final: bool, each: bool
) -> None:
    body = {**STREAM, **({"stream_options": options} if options else {})}
    seen = Rig(Engine([[1, 2, 3]]))
    await seen.call(STREAM)  # vLLM's fingerprint is learned where it cannot be read from its objects
    answer = await seen.call(body)
    bare = Engine([[1, 2, 3]])
    plain = Rig(bare)
    plain.app.core = None
    assert answer.body == (await plain.call(body)).body
    assert (b'"choices":[]' in answer.body) == final
    assert (answer.body.count(b'"usage"') >= 3) == each
    assert seen.value("llm_useful_tokens_total") == 12


async def test_limits_are_lowered_with_a_header_and_a_counter(tmp_path: Path) -> None:
    rig = Rig(policy=policy(tmp_path, {"generation": 3, "tokens": {"cap_max_tokens": 5, "lower_client": True}}))
    answer = await rig.call(WHOLE)
    assert rig.engine.seen[0]["max_tokens"] == 5
    assert answer.headers["x-trimtab-max-tokens"] == "10->5; cap" and answer.headers["x-trimtab-policy"] == "3"
    assert rig.value("trimtab_mw_limited_requests_total", reason="cap", arm="none", route="completions") == 1
    assert rig.value("llm_reserved_tokens_total") == 5
    await rig.call({**WHOLE, "max_tokens": 4})
    assert rig.engine.seen[1] == {**WHOLE, "max_tokens": 4}


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_compressed_body_is_looked_at_and_rewritten_plain_only_when_it_changes(
    tmp_path: Path, encoding: str
) -> None:
    raw = json.dumps(WHOLE).encode()
    packed = gzip.compress(raw) if encoding == "gzip" else zlib.compress(raw)
    rig = Rig(policy=policy(tmp_path, {"tokens": {"cap_max_tokens": 5, "lower_client": True}}))
    await rig.call(packed, headers={"content-encoding": encoding, "content-length": str(len(packed))})
    assert rig.engine.seen[0]["max_tokens"] == 5
    assert "content-encoding" not in rig.engine.headers[0]
    assert int(rig.engine.headers[0]["content-length"]) == len(json.dumps(rig.engine.seen[0], separators=(",", ":")))


async def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    bomb = gzip.compress(b"[" * 50_000_000)
    rig = Rig(EchoEngine())
    answer = await rig.call(bomb, headers={"content-encoding": "gzip"})
    assert answer.body == bomb
    assert rig.value("trimtab_mw_unseen_requests_total", reason="too_large") == 1


class EchoEngine:
    """Gives back the request's body, whatever it is."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"\xff\xfe", b'"x"', b"null", b"[" * 100_000])
async def test_what_is_no_request_passes_as_it_came(raw: bytes) -> None:
    rig = Rig(EchoEngine())
    assert (await rig.call(raw, pieces=3)).body == raw
    assert rig.value("trimtab_mw_unseen_requests_total", reason="not_json") == 1


@pytest.mark.parametrize("told", [True, False])
async def test_a_large_body_passes_unseen_with_or_without_a_length(tmp_path: Path, told: bool) -> None:
    rig = Rig(EchoEngine(), policy=policy(tmp_path, {"max_body_bytes": 2000}))
    raw = json.dumps({"prompt": "x" * 9000, "max_tokens": 5}).encode()
    headers = {"content-length": str(len(raw))} if told else {}
    assert (await rig.call(raw, headers=headers, pieces=7)).body == raw
    assert rig.value("trimtab_mw_unseen_requests_total", reason="too_large") == 1


async def test_a_body_in_pieces_without_a_length_is_understood() -> None:
    rig = Rig()
    await rig.call(STREAM, pieces=5)
    assert rig.engine.seen[0]["prompt"] == "hi" and rig.value("llm_useful_tokens_total") == 3


async def test_without_a_limit_what_max_model_len_leaves_is_reserved(tmp_path: Path) -> None:
    rig = Rig(policy=policy(tmp_path, {"max_model_len": 100}))
    await rig.call({"messages": [{"role": "user", "content": "hi"}]}, "/v1/chat/completions")
    assert rig.value("llm_reserved_tokens_total") == 93


async def test_other_paths_and_methods_are_not_touched() -> None:
    rig = Rig(EchoEngine())
    assert (await rig.call(b"{}", "/v1/embeddings")).body == b"{}"
    assert (await rig.call(b"", "/v1/completions", method="GET")).status == 200
    assert rig.by_ending("trimtab_mw_requests_total") == {}


async def test_a_root_path_is_left_out() -> None:
    rig = Rig()
    await rig.call(WHOLE, "/model-a/v1/completions", root="/model-a")
    assert rig.by_ending("trimtab_mw_requests_total") == {"stop": 1}


async def test_requests_are_dealt_to_arms_and_counted_by_them(tmp_path: Path) -> None:
    arms = [{"name": "control", "percent": 50},
            {"name": "trial", "percent": 50, "tokens": {"cap_max_tokens": 2, "lower_client": True}}]  # fmt: skip
    rig = Rig(policy=policy(tmp_path, {"experiment": {"name": "e", "arms": arms}}))
    got = {"control": 0, "trial": 0}
    for number in range(400):
        answer = await rig.call(WHOLE, headers={"x-request-id": f"r{number}"})
        arm = answer.headers["x-trimtab-arm"]
        got[arm] += 1
        assert rig.engine.seen[-1]["max_tokens"] == (10 if arm == "control" else 2)
        again = await rig.call(WHOLE, headers={"x-request-id": f"r{number}"})
        assert again.headers["x-trimtab-arm"] == arm
    assert 150 < got["trial"] < 250
    for arm, count in got.items():
        assert rig.value("trimtab_mw_requests_total", ending="stop", arm=arm, route="completions") == 2 * count


@pytest.mark.parametrize(("pod", "arm"), [("pod-1", "trial"), ("pod-0", "control")])
async def test_pods_named_by_an_arm_are_in_it_and_all_others_in_the_arm_without_pods(
    tmp_path: Path, pod: str, arm: str
) -> None:
    arms = [{"name": "trial", "pods": ["pod-1"], "admission": {"max_sequences": 3}}, {"name": "control"}]
    content = {"admission": {"max_sequences": 9, "max_queued": 4}, "experiment": {"name": "e", "arms": arms}}
    rig = Rig(policy=policy(tmp_path, content), environ={"POD_NAME": pod})
    assert (await rig.call(WHOLE)).headers["x-trimtab-arm"] == arm
    assert (rig.core.gate.limits.max_sequences, rig.core.gate.limits.max_queued) == (3 if arm == "trial" else 9, 4)


async def test_arms_stay_bounded_over_many_experiments() -> None:
    rig = Rig()
    labels = {rig.core.metrics.arm(f"arm-{n}") for n in range(100)}
    assert len(labels) == 33 and "other" in labels
