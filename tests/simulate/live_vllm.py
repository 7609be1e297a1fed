"""A live vLLM on the CPU whose scheduler follows scripts (`in_vllm/scripted_scheduler.py`), and clients for it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from simulate.replay import Line
from simulate.scenarios import BLOCK_SIZE, SERVER, Asked, Scenario, Stroll
from trimtab.simulate.config import EngineConfig

IN_VLLM = Path(__file__).resolve().parent / "in_vllm"
#: our names of settings where vLLM's differ
VLLM_NAMES = {"reserve_full_prompt": "scheduler_reserve_full_isl"}
#: what a scenario hands to vLLM's scheduler
SETTINGS = (
    "num_gpu_blocks", "max_num_seqs", "max_num_active_seqs", "max_num_batched_tokens", "enable_prefix_caching",
    "enable_chunked_prefill", "long_prefill_token_threshold", "long_prefill_token_threshold_adaptive", "policy",
    "watermark", "reserve_full_prompt",
)  # fmt: skip
#: token ids that end every third answer in `stroll`: one draw in 20 of the tiny model's 320
STOPS = list(range(0, 256, 16))
START_SECONDS = 500
SCENARIO_SECONDS = 60


class Live:
    def __init__(self, port: int, folder: Path) -> None:
        self.url, self.folder = f"http://127.0.0.1:{port}", folder

    def play(self, scenario: Scenario, config: EngineConfig) -> list[Line]:
        """What vLLM's scheduler did at each call."""
        arrivals = {
            "arrivals": [r.call for r in scenario.requests],
            "priorities": [r.priority for r in scenario.requests],
            "abort_after_tokens": [(k, r.abort_tokens) for k, r in enumerate(scenario.requests) if r.abort_tokens],
            "abort_at_call": [(k, r.abort_call) for k, r in enumerate(scenario.requests) if r.abort_call],
        }
        name = self._give(scenario.name, config, arrivals)
        return asyncio.run(self._all(name, scenario.requests))

    def stroll(self, stroll: Stroll, config: EngineConfig) -> list[Line]:
        """Poisson arrivals, streams that clients close, answers that end by themselves; nothing is held back."""
        name = self._give(stroll.name, config, {})
        return asyncio.run(self._all(name, stroll.requests, stroll.rate))

    def _give(self, name: str, config: EngineConfig, script: dict[str, Any]) -> str:
        name += "_async" if config.async_scheduling else "_sync"
        script["settings"] = {VLLM_NAMES.get(k, k): getattr(config, k) for k in SETTINGS}
        script["async_scheduling"] = config.async_scheduling
        (self.folder / f"{name}.json").write_text(json.dumps(script))
        return name

    async def _all(self, name: str, requests: Sequence[Asked], rate: float | None = None) -> list[Line]:
        """Send them all (at `rate` per second), wait for the log; clients whose answer never comes then hang up."""
        chance, at = random.Random(name), 0.0
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            sent = []
            for index, asked in enumerate(requests):
                header = {"X-Request-Id": f"{name}.{index}.{len(requests)}"}
                at += chance.expovariate(rate) if rate else 0.0
                one = (
                    self._read(session, asked, index, header, at) if rate else self._ask(session, asked, index, header)
                )
                sent.append(asyncio.ensure_future(one))
            answers = asyncio.gather(*sent)
            log = asyncio.create_task(asyncio.to_thread(self._written, name))
            both: set[asyncio.Future[Any]] = {answers, log}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if answers.done():
                answers.result()
            lines = await log
            for request in sent:
                request.cancel()
            await asyncio.gather(answers, *sent, return_exceptions=True)
        return lines

    def _written(self, name: str) -> list[Line]:
        log = self.folder / f"{name}.log"
        until = time.monotonic() + SCENARIO_SECONDS
        while not log.exists():
            if time.monotonic() > until:
                raise TimeoutError(f"{name} did not end in {SCENARIO_SECONDS} s; see {self.folder / 'vllm.txt'}")
            time.sleep(0.01)
        return [json.loads(line) for line in log.read_text().splitlines()]

    def _body(self, asked: Asked, index: int) -> dict[str, Any]:
        return {"model": "tiny", "prompt": asked.ids(index), "max_tokens": asked.output, "temperature": 1.0}

    async def _ask(self, session: aiohttp.ClientSession, asked: Asked, index: int, header: dict[str, str]) -> None:
        body = {**self._body(asked, index), "ignore_eos": True}
        async with session.post(f"{self.url}/v1/completions", json=body, headers=header) as answer:
            text = await answer.text()
            if answer.status != 200:
                raise AssertionError(f"{header}: {answer.status} {text[:500]}")

    async def _read(
        self, session: aiohttp.ClientSession, asked: Asked, index: int, header: dict[str, str], at: float
    ) -> None:
        await asyncio.sleep(at)
        body = {**self._body(asked, index), "ignore_eos": True, "stream": True}
        if index % 3 == 0:
            body["stop_token_ids"] = STOPS
        read = 0
        async with session.post(f"{self.url}/v1/completions", json=body, headers=header) as answer:
            if answer.status != 200:
                raise AssertionError(f"{header}: {answer.status} {(await answer.text())[:500]}")
            async for line in answer.content:
                read += line.startswith(b"data: {")
                if read == asked.abort_tokens:
                    return


@contextmanager
def started(vllm: tuple[Path, Path], folder: Path) -> Iterator[Live]:
    """Over when the caller is done; RuntimeError with the end of vLLM's log when it does not start."""
    venv, model = vllm
    folder.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {
        **os.environ, "PYTHONPATH": str(IN_VLLM), "SCENARIO_FOLDER": str(folder), "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [
        str(venv / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server", f"--model={model}",
        "--served-model-name=tiny", "--load-format=dummy", "--enforce-eager", "--dtype=bfloat16",
        f"--max-model-len={SERVER.max_model_len}", f"--block-size={BLOCK_SIZE}", f"--port={port}", "--host=127.0.0.1",
        f"--num-gpu-blocks-override={SERVER.num_gpu_blocks}", f"--max-num-seqs={SERVER.max_num_seqs}",
        f"--max-num-batched-tokens={SERVER.max_num_batched_tokens}",
        "--scheduler-cls=scripted_scheduler.ScriptedSync",
    ]  # fmt: skip
    log = folder / "vllm.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=env, cwd=folder)
    try:
        _wait(process, port, log)
        yield Live(port, folder)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError):  # it does not listen yet
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return
        time.sleep(0.3)
    raise RuntimeError(f"vLLM did not start: {log.read_text()[-3000:]}")
