"""Options become the same checked spec that a VLLMTuner gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.errors import InputError, SpecError
from trimtab.tune import demo
from trimtab.tune.options import TuneOptions, build_spec, parse_configuration, parse_listen


def test_options_go_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "tuner.yaml"
    file.write_text(
        "kind: VLLMTuner\nspec:\n  targetRef: {name: far-away}\n  metrics: {prometheus: {url: 'http://p'}}\n"
        "  objective: {slo: {ttftSeconds: 1, tpotSeconds: 2}}\n  rollout: {warmupSeconds: 7}\n"
    )
    spec = build_spec(TuneOptions(spec=file, slo_ttft=3.0, measure=900, search=["max_num_seqs=8:64"]))
    assert (spec.objective.slo.ttft_seconds, spec.objective.slo.tpot_seconds) == (3, 2)
    assert (spec.rollout.warmup_seconds, spec.rollout.max_measurement_seconds) == (7, 900)
    assert spec.metrics.direct is not None and spec.target_ref.name == "local" and spec.mode == "Auto"
    assert spec.search.max_num_seqs is not None and spec.search.max_num_seqs.max == 64


def test_candidates_keep_their_order() -> None:
    spec = build_spec(TuneOptions(candidates=["max_num_seqs=32,enable-prefix-caching=on", "max_num_seqs=16"]))
    assert spec.search.candidates == ({"enablePrefixCaching": True, "maxNumSeqs": 32}, {"maxNumSeqs": 16})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (TuneOptions(search=["max_num_seqs=a:b"]), "--search"),
        (TuneOptions(search=["speed=1:2"]), "--search"),
        (TuneOptions(search=["max_num_seqs=9:8"]), "spec.search.maxNumSeqs"),
        (TuneOptions(candidates=["max_num_seqs"]), "--candidate"),
        (TuneOptions(candidates=["max_num_seqs=many"]), "--candidate"),
        (TuneOptions(candidates=["max_num_seqs=0"]), "max_num_seqs"),
        (TuneOptions(max_trials=0), "spec.search.maxTrials"),
        (TuneOptions(slo_ttft=-1), "spec.objective.slo.ttftSeconds"),
        (TuneOptions(spec=Path("/no/such/file")), "--spec"),
    ],
)
def test_errors_name_what_is_wrong(options: TuneOptions, words: str) -> None:
    with pytest.raises(InputError) as caught:
        build_spec(options)
    assert words in str(caught.value)


def test_a_surge_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    file.write_text('{"rollout": {"maxSurge": 1}}')
    with pytest.raises(InputError, match="maxSurge"):
        build_spec(TuneOptions(spec=file))


def test_unknown_fields_of_a_spec_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    file.write_text('{"rollout": {"warmUp": 1}}')
    with pytest.raises(SpecError):
        build_spec(TuneOptions(spec=file))


def test_listen() -> None:
    assert parse_listen("127.0.0.1:80") == ("127.0.0.1", 80)
    assert parse_listen("80") == ("127.0.0.1", 80)
    with pytest.raises(InputError):
        parse_listen("here")


def test_the_demo_is_a_spec() -> None:
    spec = build_spec(TuneOptions(), demo.spec_dict("demo"))
    assert spec.rollout.measurement_seconds == demo.DEMO.measurement_seconds


def test_values_of_candidates() -> None:
    assert dict(parse_configuration("max_num_seqs=8, enable_prefix_caching=false", "--candidate")) == {
        "enable_prefix_caching": False,
        "max_num_seqs": 8,
    }
