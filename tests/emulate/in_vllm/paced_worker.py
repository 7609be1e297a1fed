"""vLLM's CPU worker with the speed of a made-up accelerator. Runs inside vLLM (`--worker-cls`).

A step takes at least what $PACE says: seconds per step, per token and per sequence. The tiny model is done long before,
also on a busy machine, so two runs differ by little. Everything else is vLLM's own.
"""

from __future__ import annotations

import os
import time
from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

FIXED, PER_TOKEN, PER_SEQUENCE = map(float, os.environ["PACE"].split(","))


class PacedWorker(CPUWorker):
    def execute_model(self, scheduler_output: Any) -> Any:
        started = time.perf_counter()
        result = super().execute_model(scheduler_output)
        tokens = scheduler_output.total_num_scheduled_tokens
        if tokens:
            sequences = len(scheduler_output.num_scheduled_tokens)
            wanted = FIXED + PER_TOKEN * tokens + PER_SEQUENCE * sequences
            time.sleep(max(0.0, started + wanted - time.perf_counter()))
        return result
