"""One whole load run: where records go, what is shown, how signals end it. The only module of the room that knows
terminals and signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from trimtab.errors import InputError
from trimtab.load.client import Client, ClientOptions, Clock, Lengths
from trimtab.load.progress import Recent, result_lines, result_table, show
from trimtab.load.prompt import Prompts, Unit
from trimtab.load.records import Record, RecordWriter
from trimtab.load.replay import Replay, ReplayOptions
from trimtab.load.summary import Slo, Summary, summarise, whole_run
from trimtab.load.trace import Request


@dataclass(frozen=True)
class SessionOptions:
    """`records` and `json_file`: a path, "-" for stdout, None for nowhere. `model` None: ask the server. `salt` None:
    the start time.
    """

    url: str
    model: str | None = None
    lengths: Lengths = "forced"
    prompt_unit: Unit = "word"
    salt: str | None = None
    timeout_seconds: float = 600.0
    patience_seconds: float | None = None
    headers: dict[str, str] = field(default_factory=dict)
    replay: ReplayOptions = field(default_factory=ReplayOptions)
    slo: Slo = field(default_factory=Slo)
    records: str | None = None
    json_file: str | None = None


@dataclass(frozen=True)
class Outcome:
    """`summary` is None when no request got as far as a Record; `reached` counts requests that the server accepted a
    connection for.
    """

    summary: Summary | None
    reached: int
    interrupted: bool
    model: str
    salt: str


async def run_session(requests: Sequence[Request], options: SessionOptions) -> Outcome:
    """Send everything, show progress, write what was asked for. SIGINT and SIGTERM end the sending and cut what is
    open.
    """
    clock, stop = Clock(), asyncio.Event()
    salt = options.salt or f"{clock():.6f}"
    console = Console(stderr="-" in (options.records, options.json_file))
    records: list[Record] = []
    recent = Recent(options.slo)
    with (
        open_output(options.records, "--records") as file,
        open_output(options.json_file, "--json") as json_out,
        _signals(stop),
    ):
        writer = RecordWriter(file) if file else None

        def on_record(record: Record) -> None:
            records.append(record)
            recent.add(record)
            if writer:
                writer.write(record)

        client_options = ClientOptions(
            url=options.url,
            model=options.model or "",
            prompts=Prompts(salt, options.prompt_unit),
            lengths=options.lengths,
            timeout_seconds=options.timeout_seconds,
            patience_seconds=options.patience_seconds,
            headers=options.headers,
        )
        model = options.model
        if model is None:
            async with Client(client_options, clock) as client:
                model = await client.model_name()
        async with Client(replace(client_options, model=model), clock) as client:
            replay = Replay(client, options.replay, on_record, clock, stop)
            await _watched(replay, requests, recent, clock, console)
        window = whole_run(records)
        outcome = Outcome(
            summary=summarise(records, window, options.slo) if window else None,
            reached=sum(r.sent_at is not None and r.cause != "connect_error" for r in records),
            interrupted=stop.is_set(),
            model=model,
            salt=salt,
        )
        if json_out:
            json_out.write(json.dumps(outcome_json(outcome, options)) + "\n")
    _print(outcome, console)
    return outcome


async def _watched(replay: Replay, requests: Sequence[Request], recent: Recent, clock: Clock, console: Console) -> None:
    start = clock()

    def draw() -> tuple[Summary, int, float]:
        now = clock()
        return recent.summary(start, now), replay.in_flight, now - start

    display = asyncio.create_task(show(console, console.is_terminal, draw))
    try:
        await replay.run(requests)
    finally:
        display.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await display


def outcome_json(outcome: Outcome, options: SessionOptions) -> dict[str, Any]:
    """The JSON summary: the Summary's fields and what the run was."""
    slo = {"ttft_seconds": options.slo.ttft_seconds, "tpot_seconds": options.slo.tpot_seconds}
    run = {
        "url": options.url,
        "model": outcome.model,
        "salt": outcome.salt,
        "interrupted": outcome.interrupted,
        "slo": slo,
    }
    return run | (outcome.summary.to_dict() if outcome.summary else {"requests": 0})


def _print(outcome: Outcome, console: Console) -> None:
    if outcome.summary is None:
        console.print("no request was sent", highlight=False)
        return
    console.print(result_table(outcome.summary))
    for line in result_lines(outcome.summary):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def open_output(target: str | None, option: str) -> Iterator[TextIO | None]:
    """Opened before the first request: a wrong path must not cost a run."""
    if target is None:
        yield None
    elif target == "-":
        yield sys.stdout
        sys.stdout.flush()
    else:
        try:
            file = Path(target).open("w", encoding="utf-8")  # noqa: SIM115 - closed below; the try is for opening only
        except OSError as error:
            raise InputError(
                option, f"{target} cannot be written ({error.strerror})", "Name a file in a folder you can write to."
            ) from error
        with file:
            yield file


@contextlib.contextmanager
def _signals(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    names = (signal.SIGINT, signal.SIGTERM)
    try:
        for name in names:
            loop.add_signal_handler(name, stop.set)
    except (NotImplementedError, RuntimeError, ValueError):
        # Windows, or not the main thread (tests, embedding): then only the caller can end the run
        yield
        return
    try:
        yield
    finally:
        for name in names:
            loop.remove_signal_handler(name)
