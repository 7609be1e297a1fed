"""Real vLLM processes for `storm.py`: started, fed with policy files, scraped, ended. Linux: CPU time from /proc."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BLOCK_TOKENS, BLOCKS = 32, 200
KV_TOKENS = BLOCK_TOKENS * BLOCKS
READY_SECONDS = 300
#: what a line of /metrics must begin with and hold, by the name a run reports
COUNTERS = {
    "preemptions": ("vllm:num_preemptions_total", ""),
    "generated_tokens": ("vllm:generation_tokens_total", ""),
    "steps": ("vllm:iteration_tokens_total_count", ""),
    "prompt_tokens": ("vllm:prompt_tokens_total", ""),
    "prompt_tokens_computed": ("vllm:prompt_tokens_by_source_total", 'source="local_compute"'),
    "prefill_tokens_computed": ("vllm:request_prefill_kv_computed_tokens_sum", ""),
    "server_cpu_seconds": ("process_cpu_seconds_total", ""),
}


@dataclass(frozen=True)
class Kind:
    """How an engine is started. max_num_seqs None: vLLM's default (128 on CPU)."""

    name: str
    max_num_seqs: int | None
    middleware: bool
    prefix_caching: bool


class Engine:
    """One vLLM that serves, in `folder`. Idle ones use no CPU, so several may stand by while one is measured."""

    def __init__(self, kind: Kind, venv: Path, model: Path, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.policy_file = folder / "policy.json"
        self._generation = 0
        folder.mkdir(parents=True)
        self._mount()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        with (folder / "vllm.log").open("wb") as log:
            self.process = subprocess.Popen(
                self._command(venv, model), stdout=log, stderr=subprocess.STDOUT, env=self._environment(),
                start_new_session=True,
            )  # fmt: skip

    def _mount(self) -> None:
        shutil.copy(ROOT / "benchmarks" / "storm_ending.py", self.folder)
        (self.folder / "trimtab_mw").mkdir()
        for file in (ROOT / "tuner" / "trimtab" / "middleware").glob("*.py"):
            shutil.copy(file, self.folder / "trimtab_mw")
        self.policy_file.write_text("{}")

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ, "PYTHONPATH": str(self.folder), "TRIMTAB_POLICY_FILE": str(self.policy_file),
            "POD_NAME": "storm", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
        }  # fmt: skip

    def _command(self, venv: Path, model: Path) -> list[str]:
        kind = self.kind
        command = [
            str(venv / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server", f"--model={model}",
            "--served-model-name=tiny", "--load-format=dummy", "--enforce-eager", "--dtype=bfloat16",
            "--max-model-len=2048", f"--block-size={BLOCK_TOKENS}", f"--num-gpu-blocks-override={BLOCKS}",
            "--host=127.0.0.1", f"--port={self.port}", "--disable-uvicorn-access-log",
            "--enable-prefix-caching" if kind.prefix_caching else "--no-enable-prefix-caching",
            "--middleware=storm_ending.Ending",  # the first is the innermost
        ]  # fmt: skip
        if kind.max_num_seqs is not None:
            command.append(f"--max-num-seqs={kind.max_num_seqs}")
        return [*command, "--middleware=trimtab_mw.Middleware"] if kind.middleware else command

    def wait_ready(self) -> None:
        """SystemExit with the log's end where it does not serve."""
        until = time.monotonic() + READY_SECONDS
        while self.process.poll() is None and time.monotonic() < until:
            try:
                self.get("/health")
                return
            except OSError:
                time.sleep(0.5)
        log = (self.folder / "vllm.log").read_text()[-3000:]
        raise SystemExit(f"vLLM ({self.kind.name}) does not serve:\n{log}")

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as response:
            return str(response.read().decode())

    def counters(self) -> dict[str, float]:
        found = dict.fromkeys(COUNTERS, 0.0)
        for line in self.get("/metrics").splitlines():
            for name, (metric, label) in COUNTERS.items():
                if line.startswith(metric) and label in line:
                    found[name] += float(line.rpartition(" ")[2])
        return {**found, "engine_cpu_seconds": self._cpu_seconds() - found["server_cpu_seconds"]}

    def apply(self, policy: dict[str, Any]) -> None:
        """The middleware's policy, in effect on return. As a ConfigMap volume does it: a new file over the old."""
        self._generation += 1
        fresh = self.policy_file.with_suffix(".new")
        fresh.write_text(json.dumps({**policy, "generation": self._generation}))
        fresh.rename(self.policy_file)
        until = time.monotonic() + 5
        while time.monotonic() < until:
            time.sleep(0.25)
            status = self.get("/trimtab/status")
            if json.loads(status)["policy"]["generation"] == self._generation:
                return
        raise SystemExit(f"The policy was not taken: {status}")

    def _cpu_seconds(self) -> float:
        """Of all processes of its session, which have the first one's id as their process group."""
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            if int(fields[2]) == self.process.pid:
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


def machine_cpu_seconds() -> float:
    """Busy CPU time of the whole machine since it started, all cores."""
    user, nice, system, _idle, _wait, irq, soft, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")
