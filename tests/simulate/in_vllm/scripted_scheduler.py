"""vLLM's own schedulers, with a log of every decision and a script of arrivals. Runs inside vLLM (`--scheduler-cls`).

A request whose X-Request-Id is `SCENARIO.INDEX.TOTAL` belongs to a scenario. Its file `SCENARIO.json` in
$SCENARIO_FOLDER says which settings the scheduler has (it is built anew from them; the model runner keeps the
server's, which must not be smaller), and, where the scenario has arrivals, at which call of schedule() each request
joins the queue and leaves: nothing is scheduled before all of them are there. `SCENARIO.log` appears when the
last request has ended: one object per call of schedule(). Nothing here decides anything.

vLLM schedules synchronously on a CPU, whatever its flags say ("not required on CPU"). A scenario's `async_scheduling`
puts vLLM's other scheduler and its other step function (`step_with_batch_queue`, two batches) in place, so that one
server plays both.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections import Counter, deque
from dataclasses import replace
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.request import RequestStatus

FOLDER = Path(os.environ["SCENARIO_FOLDER"])
REQUEST = re.compile(r"cmpl-(?P<scenario>\w+)\.(?P<index>\d+)\.(?P<total>\d+)-")
#: settings by the part of vLLM's configuration that holds them; all others are the scheduler's
OF_THE_CACHE = ("enable_prefix_caching",)

Json = dict[str, Any]


class Scripted:
    """Put before one of vLLM's schedulers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._given = kwargs
        self.scenario = ""
        self._clear({}, 0)
        super().__init__(*args, **kwargs)

    def _clear(self, script: Json, total: int) -> None:
        self._script, self._total = script, total
        self._held: dict[int, Any] = {}
        self._arrived = self._calls = 0
        self._events: list[list[Any]] = []
        self._lines: list[Json] = []
        self._computing = False
        self._given_tokens: Counter[int] = Counter()
        self._leaving: list[int] = []

    # --- a scenario begins and ends -----------------------------------------------------------------------------------

    def begin(self, name: str, total: int, engine: EngineCore) -> None:
        """Build the scheduler anew for scenario `name` of `total` requests."""
        if self.requests:
            raise RuntimeError(f"scenario {name} begins while {self.scenario} has requests")
        script = json.loads((FOLDER / f"{name}.json").read_text())
        self.__class__ = ScriptedAsync if script["async_scheduling"] else ScriptedSync
        _set_step_function(engine, script["async_scheduling"])
        config = copy.copy(self._given["vllm_config"])
        config.scheduler_config = copy.copy(config.scheduler_config)
        config.cache_config = copy.copy(config.cache_config)
        settings = dict(script["settings"])
        blocks = settings.pop("num_gpu_blocks")
        for key, value in settings.items():
            part = config.cache_config if key in OF_THE_CACHE else config.scheduler_config
            if not hasattr(part, key):
                raise AttributeError(f"vLLM has no setting {key}")
            object.__setattr__(part, key, value)
        object.__setattr__(config.cache_config, "num_gpu_blocks", blocks)
        object.__setattr__(config.scheduler_config, "max_num_scheduled_tokens", None)
        cache = replace(self._given["kv_cache_config"], num_blocks=blocks)
        unseen = self.finished_req_ids  # the model runner has yet to hear of them
        super().__init__(**{**self._given, "vllm_config": config, "kv_cache_config": cache})
        self.finished_req_ids = unseen
        self.scenario = name
        self._clear(script, total)

    def _write_if_over(self) -> None:
        if self._total and self._arrived == self._total and not self.requests and not self._computing:
            if self._events:  # the last ones left before they were ever looked at again
                self._lines.append({"call": self._calls, "events": self._events})
            unfinished = FOLDER / f"{self.scenario}.part"
            unfinished.write_text("\n".join(json.dumps(line) for line in self._lines))
            unfinished.rename(FOLDER / f"{self.scenario}.log")
            self._total = 0

    # --- what the engine calls ----------------------------------------------------------------------------------------

    def add_request(self, request: Any) -> None:
        found = REQUEST.match(request.request_id)
        if not found:
            super().add_request(request)
            return
        index = int(found["index"])
        if "arrivals" not in self._script:
            self._join(index, request)
            return
        self._held[index] = request

    def _join(self, index: int, request: Any) -> None:
        self._arrived += 1
        self._events.append(["add", index])
        super().add_request(request)

    def has_requests(self) -> bool:
        return super().has_requests() or self._script_goes_on()

    def _script_goes_on(self) -> bool:
        return bool(self._held) and len(self._held) + self._arrived == self._total

    def finish_requests(self, request_ids: Any, finished_status: RequestStatus) -> list[Any]:
        """Clients that leave."""
        left = super().finish_requests(request_ids, finished_status)
        for request in left:
            if REQUEST.match(request.request_id):
                event = ["abort", self._index(request.request_id)]
                (self._lines[-1]["meanwhile"] if self._computing else self._events).append(event)
        self._write_if_over()
        return left

    def schedule(self, throttle_prefills: bool = False) -> Any:
        if not self._total:
            return super().schedule(throttle_prefills)
        self._follow_script()
        before = {r.request_id for r in self.running}
        preempted: list[int] = []
        self._preempted = preempted
        out = super().schedule(throttle_prefills)
        self._computing = True
        counts = out.num_scheduled_tokens
        self._lines.append({
            "call": self._calls,
            "events": self._events,
            "preempted": preempted,
            "admitted": [
                [self._index(r.request_id), r.num_computed_tokens - counts[r.request_id], r.num_preemptions > 0]
                for r in self.running if r.request_id not in before
            ],
            "scheduled": [[self._index(i), n] for i, n in counts.items()],
            "meanwhile": [],
            "tokens": [],
            "finished": [],
            "free": self._count_free,
        })  # fmt: skip
        self._events = []
        self._calls += 1
        return out

    @property
    def _count_free(self) -> int:
        return int(self.kv_cache_manager.block_pool.get_num_free_blocks())

    def _follow_script(self) -> None:
        if "arrivals" not in self._script or self._total != len(self._held) + self._arrived:
            return
        for index, call in enumerate(self._script["arrivals"]):
            if index in self._held and call <= self._calls:
                request = self._held.pop(index)
                request.arrival_time = float(self._arrived)
                request.priority = self._script["priorities"][index]
                self._join(index, request)
        leaving = self._leaving + [i for i, call in self._script["abort_at_call"] if call == self._calls]
        self._leaving = []
        ids = [r for r in self.requests if self._index(r) in leaving]
        if ids:
            self.finish_requests(ids, RequestStatus.FINISHED_ABORTED)

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        if self._total:
            self._preempted.append(self._index(request.request_id))
        super()._preempt_request(request, *args, **kwargs)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        out = super().update_from_output(scheduler_output, model_runner_output)
        if self._total and self._lines:
            line = self._lines[-1]
            for outputs in out.values():
                for one in outputs.outputs:
                    self._take_down(line, one)
            self._computing = False
            line["free"] = self._count_free
            self._write_if_over()
        return out

    def _take_down(self, line: Json, one: Any) -> None:
        index = self._index(one.request_id)
        line["tokens"] += [index] * len(one.new_token_ids)
        if one.finish_reason is not None:
            line["finished"].append([index, str(one.finish_reason)])
        self._given_tokens[index] += len(one.new_token_ids)
        for who, tokens in self._script.get("abort_after_tokens", ()):
            if who == index and self._given_tokens[index] == tokens:
                self._leaving.append(index)

    @staticmethod
    def _index(request_id: str) -> int:
        found = REQUEST.match(request_id)
        return int(found["index"]) if found else -1


class ScriptedSync(Scripted, Scheduler):
    """Decide, compute, deliver."""


class ScriptedAsync(Scripted, AsyncScheduler):
    """vLLM's default on GPUs."""


def _set_step_function(engine: EngineCore, asynchronous: bool) -> None:
    """As EngineCore.__init__ chooses it, once nothing is being computed."""
    while engine.batch_queue:
        engine.batch_queue.pop()[0].result()
    engine.async_scheduling = asynchronous
    engine.batch_queue_size = 2 if asynchronous else 1
    engine.batch_queue = deque(maxlen=2) if asynchronous else None
    engine.step_fn = engine.step_with_batch_queue if asynchronous else engine.step


_add_request = EngineCore.add_request


def _begin_scenario(self: EngineCore, request: Any, request_wave: int = 0) -> None:
    found = REQUEST.match(request.request_id)
    if found and found["scenario"] != self.scheduler.scenario:
        self.scheduler.begin(found["scenario"], int(found["total"]), self)
    _add_request(self, request, request_wave)


EngineCore.add_request = _begin_scenario
