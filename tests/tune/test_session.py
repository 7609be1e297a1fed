"""Whole runs on emulators: a crash, a promotion, a kill, an interruption."""

from __future__ import annotations

import asyncio
import io
import signal
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from trimtab.errors import InputError, TargetError
from trimtab.judge.verdict import Kind
from trimtab.plan.record import Phase
from trimtab.plan.spec import TunerSpec
from trimtab.tune.process import Identity
from trimtab.tune.session import SessionOptions, run_session
from trimtab.tune.state import Store

Spec = Callable[..., TunerSpec]
Options = Callable[[TunerSpec], SessionOptions]


@pytest.mark.slow
async def test_a_crash_is_an_error_and_the_better_one_is_promoted(short_spec: Spec, session_options: Options) -> None:
    spec = short_spec("max_num_seqs=300", "max_num_seqs=400", "max_num_seqs=16", max_trials=2)
    options = session_options(spec)
    shown = io.StringIO()
    done = await asyncio.wait_for(run_session(options, Console(file=shown, width=120)), 150)
    text = shown.getvalue()
    crashed, better = done.state.trials  # 400 is not tried: less has crashed
    assert crashed.configuration["max_num_seqs"] == 300 and crashed.phase is Phase.ROLLED_BACK, text
    assert crashed.verdict is not None and crashed.verdict.kind is Kind.ERROR and crashed.infeasible
    assert crashed.verdict.reason == "OutOfMemory"
    assert better.configuration["max_num_seqs"] == 16 and better.phase is Phase.PROMOTED, text
    assert done.command == "trimtab emulate serve tiny --max-num-seqs 16" and done.command in text
    before, after = done.result["before"], done.result["after"]
    assert after["goodput_tokens_per_second"] > 1.3 * before["goodput_tokens_per_second"]
    assert done.result["load"]["failed_by_cause"] == {}
    assert done.result["load"]["endings"]["ok"] > 100
    assert Store(options.state).load() == done.state and not done.interrupted


async def test_an_engine_that_does_not_start_ends_the_run(short_spec: Spec, session_options: Options) -> None:
    options = session_options(short_spec(max_trials=1))
    bad = SessionOptions(**{**vars(options), "command": [*options.command[:-1], "250"], "load": None})
    with pytest.raises(TargetError, match="out of memory"):
        await asyncio.wait_for(run_session(bad, Console(file=io.StringIO())), 60)
    state = Store(bad.state).load()
    assert state is not None and state.processes == []


async def test_two_runs_do_not_share_a_state_file(short_spec: Spec, session_options: Options) -> None:
    options = session_options(short_spec(max_trials=1))
    with options.state.with_suffix(".lock").open("w") as file:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="in progress"):
            await run_session(options, Console(file=io.StringIO()))


@pytest.mark.slow
def test_a_killed_run_is_cleaned_up_and_rolled_back_by_the_next(
    tune_process: Callable[[], Any], wait_until: Callable[..., None], alive: Callable[[Identity], bool]
) -> None:
    first = tune_process()
    wait_until(lambda: first.phase() == "Measuring", 90)
    left = first.processes()
    first.process.kill()
    first.process.wait(5)
    assert len(left) == 3 and all(alive(p) for p in left)  # two engines and the load
    second = tune_process()
    wait_until(lambda: second.phase() == "RolledBack", 60)
    assert not any(alive(p) for p in left)
    wait_until(lambda: second.phase() == "Starting", 90)  # stopped is not tried: it is proposed again
    running = second.processes()
    second.process.send_signal(signal.SIGINT)
    text, _ = second.process.communicate(timeout=30)
    assert second.process.returncode == 130, text
    assert "Ended 3 processes" in text and "trial-1 was in flight" in text and "Trials" in text
    assert not any(alive(p) for p in running)
    state = Store(second.state).load()
    assert state is not None and state.processes == []
    assert state.trials[0].verdict is not None and state.trials[0].verdict.reason == "Stopped"
    assert state.trials[1].configuration == state.trials[0].configuration
