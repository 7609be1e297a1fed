"""What all requests share: the policy in effect, the gate, the metrics, the observed lengths. One per process."""

from __future__ import annotations

import asyncio
import math
import random
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

from . import VERSION, arms, peek
from .admission import Gate, Lengths, Ticket
from .answers import answer
from .body import Message, Receive, Send
from .drain import DEFAULT_HOLD_SECONDS, Drain, hold_seconds, may_drain
from .exchange import Exchange
from .feature_log import Writer
from .features import row_of
from .guard import Guard
from .limits import Chooser, Limits
from .metrics import FINISHED, Metrics, shared
from .policy_file import ROUTES, Arm
from .policy_watch import Watch
from .predictor import Loaded, Prediction
from .stream import OpenAIEvents
from .wire import CHARS_PER_TOKEN, PATHS, Request

#: new connections still arrive for about 1 s after the pod's endpoint is taken out (measured with kube-proxy)
SETTLE_SECONDS = 3.0
#: gauges are set at most so often by requests; a scrape of this process always sees them fresh
SHOW_SECONDS = 0.2


class Core:
    """Time, chance and the environment come in, so that tests own them."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.clock, self.wall, self.chance = clock, wall, chance
        self.metrics = shared() if metrics is None else metrics
        self.guard = Guard(lambda hook: self.metrics.faults.labels(hook).inc())
        self.pod = environ.get("POD_NAME") or environ.get("HOSTNAME") or socket.gethostname()
        self._token = environ.get("TRIMTAB_DRAIN_TOKEN", "")
        self._host_ip = environ.get("TRIMTAB_HOST_IP", "")
        self.watch = Watch(environ.get("TRIMTAB_POLICY_FILE"), self._policy_bad)
        self.gate, self.drain, self.writer = Gate(), Drain(), Writer()
        self.predictor = Loaded(self._predictor_state)
        self.lengths = {route: Lengths(CHARS_PER_TOKEN) for route in ROUTES}
        self.admitted = self.metrics.admissions.labels("admitted")
        self.state: Any = None
        self._looked = False
        self._shown = float("-inf")
        self._max_model_len: int | None = None
        self._fingerprints: dict[str, bytes] = {}
        self._useful = self._reserved = 0
        self._digest = ""
        self._pod_arm: Arm | None = None
        self.metrics.info.labels(VERSION).set(1)
        self.metrics.policy_generation.set(0)
        self._take()
        with self.guard("policy"):
            self.poll()

    # --- policy -----------------------------------------------------------------------------------------------------
    def poll(self) -> None:
        now = self.clock()
        if now - self._shown > SHOW_SECONDS:
            self._shown = now
            self.show()
        if self.watch.poll(now):
            self._take()
        elif self.metrics_bad and not self.watch.problem:
            self._show_good()
        predictor = self.watch.policy.predictor
        if predictor is not None or self.predictor.up:
            self.predictor.use(predictor.path if predictor is not None else "", now)

    def _take(self) -> None:
        """A new policy is in effect."""
        policy, metrics = self.watch.policy, self.metrics
        self.chooser = Chooser(policy)
        experiment = policy.experiment
        self._pod_arm = arms.pod_arm(experiment, self.pod) if experiment is not None else None
        self.gate.limits = arms.admission_of(policy, self._pod_arm)
        self.gate.pump()
        self.writer.configure(policy.feature_log)
        if self._digest:
            metrics.policy_info.labels(self._digest).set(0)
            metrics.forget(metrics.policy_info, self._digest)
        self._digest = policy.digest or "none"
        metrics.policy_info.labels(self._digest).set(1)
        metrics.policy_generation.set(policy.generation)
        metrics.policy_loaded.set(self.wall())
        self._show_good()

    def _show_good(self) -> None:
        self.metrics.policy_bad.set(0)
        self.metrics_bad = False

    def _policy_bad(self, problem: str) -> None:
        self.metrics.policy_errors.inc()
        self.metrics.policy_bad.set(1)
        self.metrics_bad = True

    def _predictor_state(self, up: bool, reason: str) -> None:
        self.metrics.predictor_up.set(1 if up else 0)
        if reason:
            self.metrics.predictor_errors.labels(reason).inc()

    # --- a request --------------------------------------------------------------------------------------------------
    async def handle(self, app: Any, scope: Any, receive: Receive, send: Send) -> None:
        with self.guard("policy"):
            self.poll()
        path = scope["path"]
        root = scope.get("root_path") or ""
        if root and path.startswith(root):
            path = path[len(root) :]
        route = PATHS.get(path)
        if route is None or scope["method"] != "POST":
            with self.guard("metrics"):
                self.show()
            if path.startswith("/trimtab/"):
                await self._own(path, scope, receive, send)
            else:
                await app(scope, receive, self._closing(send) if self.drain.state else send)
            return
        exchange = None
        with self.guard("begin"):
            if not self._looked:
                self._look(scope)
            exchange = Exchange(self, scope, receive, send, route)
        if exchange is None:
            await app(scope, receive, send)
        else:
            await exchange.run(app)

    def _look(self, scope: Mapping[str, Any]) -> None:
        self._looked = True
        self.state = peek.app_state(scope)
        self._max_model_len = peek.max_model_len(self.state)
        self.gate.block_tokens = peek.block_tokens(self.state)

    def fingerprint(self, route: str) -> bytes:
        if route not in self._fingerprints:
            self._fingerprints[route] = peek.fingerprint(self.state, route)
        return self._fingerprints[route]

    def arm_of(self, exchange: Exchange) -> Arm | None:
        experiment = exchange.policy.experiment
        if experiment is None or self._pod_arm is not None:
            return self._pod_arm
        return arms.dealt(experiment, exchange.deal_key()) if not arms.by_pods(experiment) else None

    def predict(self, request: Request) -> Prediction | None:
        return self.predictor.ask(request) if self.predictor.up else None

    def feature_row(self, request: Request) -> dict[str, Any] | None:
        return row_of(request) if self.writer.wants(self.chance()) else None

    def weigh(self, request: Request, limits: Limits, prediction: Prediction | None, header: Any) -> Ticket:
        """What a request will take of the engine. Expected output is never more than its limit."""
        sequences = request.sequences
        admission = self.gate.limits
        if admission.kv_budget_tokens is None:
            return Ticket(sequences)
        lengths = self.lengths[request.route]
        prompt = request.prompt_estimate(lengths.chars_per_token)
        limit = self._limit(limits.max_tokens, prompt / request.prompts)
        mean, variance = self._expected(admission.estimate, lengths, limit, prediction)
        given = header(admission.expected_tokens_header) if admission.expected_tokens_header else None
        if given is not None and given.isascii() and given.isdigit() and len(given) < 10:
            mean, variance = float(given), 0.0
        if limit is not None:
            mean = min(mean, limit)
        return Ticket(sequences, prompt, mean, variance, math.inf if limit is None else limit)

    @staticmethod
    def _expected(
        estimate: str | None, lengths: Lengths, limit: float | None, prediction: Prediction | None
    ) -> tuple[float, float]:
        if prediction is not None and estimate in (None, "predicted"):
            return prediction.moments()
        if lengths.known and (estimate != "max_tokens" or limit is None):
            return lengths.mean, lengths.variance
        return (limit if limit is not None else lengths.mean), 0.0

    def _limit(self, max_tokens: int | None, prompt_tokens: float) -> int | None:
        """A sequence's limit: its own, and what max_model_len leaves."""
        longest = self.watch.policy.max_model_len or self._max_model_len
        left = max(0, longest - int(prompt_tokens)) if longest else None
        if max_tokens is None or left is None:
            return max_tokens if max_tokens is not None else left
        return min(max_tokens, left)

    # --- its end ----------------------------------------------------------------------------------------------------
    def finish(self, exchange: Exchange) -> None:
        ending, (sent, after) = exchange.ending(), exchange.counts()
        arm = self.metrics.arm(exchange.arm.name) if exchange.arm is not None else "none"
        children = self.metrics.of(ending, arm, exchange.route)
        now = self.clock()
        children.requests.inc()
        children.held.inc(now - exchange.started)
        if sent:
            children.generated.inc(sent)
        done = ending in FINISHED
        if not done and sent + after:
            children.wasted.inc(sent + after)
        if after:
            self.metrics.after_disconnect.labels(arm, exchange.route).inc(after)
        self._reserve(exchange, children, done, sent, ending)
        if done:
            self._learn(exchange, children, sent)
        for reason, _ in exchange.limits.changes:
            self.metrics.limited.labels(reason, arm, exchange.route).inc()
        if ending == "client_cancel" and exchange.left_at is not None and exchange.reached_engine:
            self.metrics.to_stop.observe(now - exchange.left_at)
        self._inexact(exchange, done)
        self._log(exchange, ending, sent)
        gone = exchange.left_at is not None or exchange.closes or exchange.failed
        self.drain.ends(exchange.connection, gone, now)
        if not self.gate.running_requests and now - self._shown > SHOW_SECONDS:
            self._shown = now
            self.show()

    def _reserve(self, exchange: Exchange, children: Any, done: bool, sent: int, ending: str) -> None:
        if done:
            self.metrics.useful.inc(sent)
            self._useful += sent
        request = exchange.request
        if request is None or ending == "rejected" or not exchange.reached_engine:
            return
        prompt = exchange.meter.prompt_tokens if exchange.meter is not None else None
        if prompt is None:
            prompt = request.prompt_estimate(self.lengths[request.route].chars_per_token)
        limit = self._limit(exchange.limits.max_tokens, prompt / request.prompts)
        reserved = sent if limit is None else request.sequences * limit
        self.metrics.reserved.inc(reserved)
        children.reserved.inc(reserved)
        self._reserved += reserved
        if reserved:
            children.ratio.observe(sent / reserved)

    def _learn(self, exchange: Exchange, children: Any, sent: int) -> None:
        meter, request = exchange.meter, exchange.request
        if meter is None:
            return
        if isinstance(meter, OpenAIEvents) and meter.fingerprint:
            self._fingerprints[exchange.route] = meter.fingerprint  # where it could not be read from vLLM's objects
        per_choice: list[float] = [*meter.by_choice.values()] or [sent / max(1, meter.choices)]
        for tokens in per_choice:
            children.output.observe(tokens)
            self.lengths[exchange.route].add(tokens)
        if request is not None and meter.prompt_tokens is not None and request.prompt_tokens is None:
            self.lengths[exchange.route].prompt(request.prompt_chars, meter.prompt_tokens)

    def _inexact(self, exchange: Exchange, done: bool) -> None:
        """Requests whose tokens are not known exactly: cut off before an answer came, or streamed without a count."""
        meter = exchange.meter
        if exchange.left_at is not None and exchange.reached_engine and not exchange.streams and not done:
            self.metrics.inexact.labels("not_streamed").inc()
        elif meter is not None and meter.tokens and not meter.exact:
            self.metrics.inexact.labels("no_running_usage").inc()

    def _log(self, exchange: Exchange, ending: str, sent: int) -> None:
        if exchange.row is None or exchange.request is None:
            return
        meter = exchange.meter
        row = {
            **exchange.row,
            "at": round(self.wall(), 3),
            "output_tokens": meter.longest if meter is not None and exchange.left_at is None else sent,
            "ending": ending,
            "cap_tokens": exchange.limits.max_tokens,
            "model": exchange.request.model,
        }
        if meter is not None and meter.prompt_tokens is not None:
            row["usage_prompt_tokens"] = meter.prompt_tokens
        if self.writer.write(row):
            self.metrics.feature_rows.inc()

    def show(self) -> None:
        """Set the gauges. Not for each request: before a scrape, every SHOW_SECONDS, and when nothing runs any more."""
        gate, metrics = self.gate, self.metrics
        metrics.queued.set(gate.queued)
        metrics.running.set(gate.running_sequences)
        metrics.kv_expected.set(gate.peak() if gate.limits.kv_budget_tokens is not None else 0)
        if self._reserved:
            metrics.useful_ratio.set(self._useful / self._reserved)

    # --- own endpoints ----------------------------------------------------------------------------------------------
    def _closing(self, send: Send) -> Send:
        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        return closing

    async def _own(self, path: str, scope: Any, receive: Receive, send: Send) -> None:
        if path == "/trimtab/status" and scope["method"] == "GET":
            await answer(send, 200, self.status(), close=self.drain.state > 0)
        elif path == "/trimtab/drain" and scope["method"] in ("GET", "POST"):
            await self._drain(scope, send)
        else:
            await answer(send, 404, {"error": "Known here: GET /trimtab/status, GET or POST /trimtab/drain"})

    async def _drain(self, scope: Any, send: Send) -> None:
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        client = (scope.get("client") or ("", 0))[0]
        if not may_drain(client, headers, self._token, self._host_ip):
            await answer(send, 403, {"error": "Not allowed: send x-trimtab-token, or call from this pod or its node"})
            return
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        if "cancel" in query:
            self.drain.stop()
            self.metrics.draining.set(0)
            await answer(send, 200, {"draining": False})
            return
        held = await self._hold(hold_seconds(query.get("seconds", [str(DEFAULT_HOLD_SECONDS)])[0]))
        content = {"draining": True, "held_seconds": round(held, 3), "open_connections": self._open()}
        await answer(send, 200, content, close=True)

    async def _hold(self, seconds: float) -> float:
        """Until all kept connections have left, SETTLE_SECONDS to `seconds`; then new work is refused."""
        began = self.clock()
        self.drain.start()
        self.metrics.draining.set(self.drain.state)
        while self.drain.state:
            held = self.clock() - began
            if held >= seconds or (held >= SETTLE_SECONDS and self._open() == 0):
                self.drain.refuse()
                break
            await asyncio.sleep(min(0.1, max(0.001, seconds - held)))
        self.metrics.draining.set(self.drain.state)
        return self.clock() - began

    def _open(self) -> int:
        return self.drain.open_connections(self.clock())

    def status(self) -> dict[str, Any]:
        """What the operator and a person look at. No text and no key of any request is in it."""
        policy = self.watch.policy
        return {
            "version": VERSION,
            "pod": self.pod,
            "policy": {
                "file": self.watch.path,
                "generation": policy.generation,
                "digest": self._digest,
                "problem": self.watch.problem,
                "counting": policy.counting,
                "experiment": policy.experiment.name if policy.experiment is not None else None,
                "arm": self._pod_arm.name if self._pod_arm is not None else None,
            },
            "running_requests": self.gate.running_requests,
            "running_sequences": self.gate.running_sequences,
            "kv_expected_tokens": round(self.gate.peak()),
            "queued_requests": self.gate.queued,
            "useful_tokens": self._useful,
            "reserved_tokens": self._reserved,
            "max_model_len": self.watch.policy.max_model_len or self._max_model_len,
            "predictor": self.predictor.up,
            "draining": self.drain.state,
            "open_connections": self._open(),
        }
