"""One process that answers as Prometheus for any number of vLLM pods: series computed from time, nothing is stored.

`speed(namespace, pod)` says how much of a usual pod's work a pod does, or since when it does how much; None: nothing is
scraped from it. What else may go wrong is in `Trouble`.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

#: (unix seconds from which on, share of a usual pod's work), oldest first
Changes = Sequence[tuple[float, float]]
Speed = Callable[[str, str], float | Changes | None]
#: requests/s and tokens per request of a usual pod
REQUESTS_PER_SECOND: Final = 4.0
TOKENS: Final = 100.0
_EDGES: Final = (0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
_LENGTHS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)
#: histogram -> (edges, the median of its values)
_HISTOGRAMS: Final = {
    "vllm:time_to_first_token_seconds": (_EDGES, 0.2),
    "vllm:request_time_per_output_token_seconds": (_EDGES, 0.03),
    "vllm:e2e_request_latency_seconds": (_EDGES, 3.0),
    "vllm:request_queue_time_seconds": (_EDGES, 0.05),
    "vllm:request_prompt_tokens": (_LENGTHS, 200.0),
    "vllm:request_generation_tokens": (_LENGTHS, TOKENS),
}
#: counter -> its growth per finished request
_COUNTERS: Final = {
    'vllm:request_success_total{finished_reason="stop"}': 1.0,
    'vllm:request_success_total{finished_reason="abort"}': 0.0,
    "vllm:generation_tokens_total": TOKENS,
    "vllm:prompt_tokens_total": 200.0,
    "vllm:num_preemptions_total": 0.0,
    "vllm:request_params_max_tokens_sum": 4 * TOKENS,
}
#: every pod has served for about twelve days
_BEGAN: Final = time.time() - 1e6
_GAUGES: Final = {"vllm:num_requests_running": 4.0, "vllm:num_requests_waiting": 2.0, "vllm:kv_cache_usage_perc": 0.4}


@dataclass
class Trouble:
    """What is wrong with the answers now. `status`: every query is answered with it. `old_seconds`: the newest sample
    is as old. `nan`: every value is NaN. `skew_seconds`: sample times are off by it. `silent`: accepts, never answers.
    `resets_every_seconds`: counters jump back to 0. `processes`: each scrape reaches another one of so many, which
    count apart. `gauges`: values of gauges of the pods that `sick` chooses.
    """

    status: int = 200
    old_seconds: float = 0.0
    nan: bool = False
    skew_seconds: float = 0.0
    silent: bool = False
    resets_every_seconds: float = 0.0
    processes: int = 1
    gauges: Mapping[str, float] = field(default_factory=dict)
    sick: Callable[[str], bool] = lambda _pod: True
    job: str = "vllm"
    pod_label: bool = True


class StandInPrometheus:
    """`with StandInPrometheus(speed) as p:` serves at `p.url`. scrape_seconds: the interval of its samples;
    history_seconds: how old the oldest is at the start.
    """

    def __init__(self, speed: Speed, scrape_seconds: float = 2.0, history_seconds: float = 7200.0) -> None:
        self.speed, self.scrape_seconds, self.trouble, self.queries = speed, scrape_seconds, Trouble(), 0
        self.since = time.time() - history_seconds
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Silence."""

            def do_GET(self) -> None:
                outer.queries += 1
                while outer.trouble.silent:
                    time.sleep(0.2)
                body = json.dumps(outer.answer(self.path)).encode()
                self.send_response(outer.trouble.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # whoever asked was killed
                    self.wfile.write(body)

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                """A client that was killed is no news."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> StandInPrometheus:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.trouble.silent = False
        self._server.shutdown()
        self._server.server_close()

    # --- answers ------------------------------------------------------------------------------------------------------
    def answer(self, path: str) -> Any:
        """The JSON for one query: raw samples of `selector[range]` at an instant, or their `last_over_time` on a grid;
        anything else has no result.
        """
        query = parse_qs(urlsplit(path).query)
        text = query.get("query", [""])[0]
        if (grid := re.fullmatch(r"last_over_time\((\{.*\})\[\d+ms\]\)", text, re.S)) is not None:
            start, end, step = (float(query[name][0]) for name in ("start", "end", "step"))
            times = [start + step * k for k in range(int((end - start) / step) + 1) if start + step * k >= self.since]
            found_by = (s for ns, pod in self._pods(grid[1]) for s in self._series(ns, pod, times))
            return _success("matrix", list(found_by))
        found = re.fullmatch(r"(\{.*\})\[(\d+)ms\]", text, re.S)
        if text == "vector(1)":
            return _success("vector", [{"metric": {}, "value": [time.time(), "1"]}])
        if found is None or "time" not in query:
            return _success("matrix", [])
        end = float(query["time"][0])
        times = self._scrapes(end, int(found[2]) / 1000)
        return _success("matrix", [s for ns, pod in self._pods(found[1]) for s in self._series(ns, pod, times)])

    def _scrapes(self, end: float, seconds: float) -> list[float]:
        """When it scraped within the seconds before `end`."""
        every, newest = self.scrape_seconds, end - self.trouble.old_seconds
        oldest = max(end - seconds, self.since)
        return [every * k for k in range(math.ceil(oldest / every), math.floor(newest / every) + 1)]

    def _pods(self, selector: str) -> Iterator[tuple[str, str]]:
        if not self.trouble.pod_label:
            return
        spaces, pods = (_names(selector, label) for label in ("namespace", "pod"))
        yield from ((ns, pod) for ns in spaces for pod in pods if self.speed(ns, pod) is not None)

    def _series(self, namespace: str, pod: str, times: Sequence[float]) -> Iterator[Any]:
        speed, trouble = self.speed(namespace, pod) or 0.0, self.trouble
        changes = [(0.0, speed)] if isinstance(speed, float) else speed
        target = {"namespace": namespace, "pod": pod, "job": trouble.job, "instance": f"{pod}:8000"}
        started = [work(t, changes, trouble.resets_every_seconds) for t in times]
        if trouble.processes > 1:
            started = [n * share(t, trouble.processes) for n, t in zip(started, times, strict=True)]

        def made(name: str, labels: dict[str, str], values: Sequence[float]) -> Any:
            shown = ["NaN" if trouble.nan else f"{v:.12g}" for v in values]
            stamped = [[t + trouble.skew_seconds, v] for t, v in zip(times, shown, strict=True)]
            return {"metric": {"__name__": name, **labels, "model_name": "m", **target}, "values": stamped}

        for name, value in {**_GAUGES, **(trouble.gauges if trouble.sick(pod) else {})}.items():
            yield made(name, {}, [value] * len(times))
        for name, each in _COUNTERS.items():
            stem, _, label = name.partition("{")
            labels = {"finished_reason": label.split('"')[1]} if label else {}
            yield made(stem, labels, [each * n for n in started])
        for name, (edges, median) in _HISTOGRAMS.items():
            for edge in (*edges, math.inf):
                part = below(edge, median)
                labels = {"le": "+Inf" if edge == math.inf else f"{edge:g}"}
                yield made(f"{name}_bucket", labels, [part * n for n in started])
            yield made(f"{name}_sum", {}, [median * n for n in started])
            yield made(f"{name}_count", {}, list(started))


def work(at: float, changes: Changes, resets_every: float = 0.0) -> float:
    """Requests finished by a pod since it began, at unix time `at`; never falls but at a reset."""
    if resets_every:
        return changes[-1][1] * _steady(at % resets_every)
    done = 0.0
    for (since, speed), end in zip(changes, [*(later for later, _ in changes[1:]), math.inf], strict=True):
        start, stop = max(since, _BEGAN), min(end, at)
        if start < stop:
            done += speed * (_steady(stop - _BEGAN) - _steady(start - _BEGAN))
    return done


def _steady(seconds: float) -> float:
    """Requests that a usual pod has finished after so long; a little more in some seconds than in others."""
    return REQUESTS_PER_SECOND * (seconds + 0.5 * math.sin(seconds / 3.0))


def share(at: float, processes: int) -> float:
    """What the process that a scrape reaches has counted of all: they take turns, and differ."""
    turn = int(at) // 2 % processes
    return 2.0 * (turn + 1) / (processes * (processes + 1))


def below(edge: float, median: float) -> float:
    """The share of values up to `edge`, log-normal with sigma 0.5."""
    return 1.0 if edge == math.inf else 0.5 * (1 + math.erf(math.log(edge / median) / (0.5 * math.sqrt(2))))


def _names(selector: str, label: str) -> list[str]:
    """The values of label=~"a|b" in a selector, without their escapes."""
    found = re.search(rf'{label}=~"([^"]*)"', selector)
    return [re.sub(r"\\+(.)", r"\1", v) for v in found[1].split("|")] if found else []


def _success(kind: str, result: list[Any]) -> Any:
    return {"status": "success", "data": {"resultType": kind, "result": result}}
