"""`trimtab rewrite` as a person runs it: files, standard input, exit codes, and what goes where."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trimtab.cli import files as files_module
from trimtab.cli.main import main
from trimtab.cli.rewrite import setting_name

ENGINE = """\
# ours
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
  {meta}
spec:
  template:
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.9.0
        args: {args}
"""
PLAIN = ENGINE.format(name="llama", meta="labels: {}", args='["--model=m", "--max-num-seqs=32"]  # measured')
SECRET = "sk-verysecret"
SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n"


def engine(name: str = "llama", meta: str = "labels: {}", args: str = '["--max-num-seqs=32"]') -> str:
    return ENGINE.format(name=name, meta=meta, args=args)


@dataclass
class Done:
    code: int
    out: str
    err: str
    raw: bytes


Run = Callable[..., Done]


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """In a folder of its own; keyword arguments are files to write, `stdin` what is piped in."""

    def call(*args: str, stdin: str | bytes = b"", **texts: str | bytes) -> Done:
        monkeypatch.chdir(tmp_path)
        for name, text in texts.items():
            raw = text if isinstance(text, bytes) else text.encode()
            (tmp_path / f"{name}.yaml").write_bytes(raw)
        piped = stdin if isinstance(stdin, bytes) else stdin.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped)))
        with pytest.raises(SystemExit) as end:
            main(["rewrite", *args])
        sys.stdout.flush()
        captured = capfdbinary.readouterr()
        return Done(
            int(end.value.code or 0), captured.out.decode("utf-8", "replace"), captured.err.decode(), captured.out
        )

    return call


def test_the_manifest_is_printed_with_just_that_edit(run: Run) -> None:
    done = run("--set", "max_num_seqs=48", "m.yaml", m=PLAIN)
    assert (done.code, done.out) == (0, PLAIN.replace("seqs=32", "seqs=48"))
    assert done.err == "Deployment/llama (m.yaml): max_num_seqs 32 -> 48\n"


def test_nothing_to_change_is_no_error_and_prints_the_manifest(run: Run) -> None:
    done = run("--set", "max_num_seqs=32", "m.yaml", m=PLAIN)
    assert (done.code, done.out) == (0, PLAIN)
    assert "nothing to change (max_num_seqs is 32)" in done.err


@pytest.mark.parametrize("name", ["max_num_seqs", "max-num-seqs", "--max-num-seqs", "maxNumSeqs", " max_num_seqs"])
def test_a_setting_is_known_in_every_spelling(name: str) -> None:
    assert setting_name(name, "--set") == "max_num_seqs"


def test_several_settings_set_and_unset_at_once(run: Run) -> None:
    text = engine(args='["--max-num-seqs=32", "--enable-prefix-caching"]')
    done = run("--set=--no-such=1", "m.yaml", m=text)
    assert done.code == 2
    done = run("--unset", "maxNumSeqs", "--set", "enable_prefix_caching=false", "m.yaml")
    assert (done.code, done.out) == (0, engine(args='["--no-enable-prefix-caching"]'))
    assert "enable_prefix_caching true -> false, max_num_seqs 32 -> not set" in done.err


def test_standard_input_is_read_and_several_files_become_one_stream(run: Run) -> None:
    done = run("--set", "max_num_seqs=48", "-", "s.yaml", "n.yaml", stdin=PLAIN, s=SERVICE, n="---\n" + engine("n"))
    edited = [text.replace("seqs=32", "seqs=48") for text in (PLAIN, SERVICE, engine("n"))]
    assert (done.code, done.out) == (0, "---\n".join(edited))
    assert "Deployment/llama (stdin)" in done.err


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_bytes_in_are_bytes_out_in_any_encoding_with_a_mark(run: Run, encoding: str) -> None:
    text = PLAIN.replace("ours", "notre modèle 日本").replace("\n", "\r\n")
    done = run("--set", "max_num_seqs=48", "m.yaml", m=text.encode(encoding))
    assert done.raw == text.replace("seqs=32", "seqs=48").encode(encoding)


def test_a_diff_shows_the_edit_alone(run: Run) -> None:
    done = run("--set", "max_num_seqs=48", "--diff", "m.yaml", m=PLAIN.rstrip("\n"))
    lines = [line for line in done.out.splitlines() if line[:1] in "+-\\"]
    assert lines[:2] == ["--- a/m.yaml", "+++ b/m.yaml"]
    assert [line[0] for line in lines[2:]] == ["-", "\\", "+", "\\"]


def test_a_patch_is_for_one_object(run: Run) -> None:
    two = PLAIN + "---\n" + engine("other")
    done = run("--set", "max_num_seqs=48", "-o", "patch", "m.yaml", m=two)
    assert (done.code, done.out) == (2, "")
    assert "Deployment/llama, Deployment/other" in done.err
    done = run("--set", "max_num_seqs=48", "-o", "patch", "--target", "deploy/other", "m.yaml")
    at = "/spec/template/spec/containers/0"
    assert json.loads(done.out)[-1] == {"op": "replace", "path": f"{at}/args/0", "value": "--max-num-seqs=48"}


def report(done: Done) -> list[dict[str, Any]]:
    targets = json.loads(done.out)["targets"]
    assert isinstance(targets, list)
    return targets


def test_the_json_report_tells_each_target(run: Run) -> None:
    done = run("--set", "max_num_seqs=48", "-o", "json", "m.yaml", m=PLAIN)
    (target,) = report(done)
    assert done.code == 0
    assert target == {
        "file": "m.yaml", "kind": "Deployment", "name": "llama", "namespace": None, "container": "vllm",
        "changed": True, "before": {"max_num_seqs": 32}, "after": {"max_num_seqs": 48}, "owners": [],
        "reason": None, "message": None, "hint": None,
    }  # fmt: skip


# --- refusals ---------------------------------------------------------------------------------------------------------
OWNED = "ownerReferences: [{kind: InferenceService, name: llama, controller: true}]"
LWS = (
    "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: big}\n"
    "spec: {leaderWorkerTemplate: {workerTemplate: {spec: {containers: [{image: 'vllm/vllm-openai:v0'}]}}}}\n"
)


@pytest.mark.parametrize(
    ("text", "reason", "hint"),
    [
        (engine(meta=OWNED), "ControllerOwned", "InferenceService llama: its controller writes this object"),
        (LWS, "SpecElsewhere", "by hand"),
        (SERVICE, "EngineNotFound", "Give the manifest of the Deployment"),
        (engine(args='["--max-num-seqs 32"]'), "FlagAndValueGlued", ""),
        (engine(args="[x]").replace("vllm/vllm-openai", "nginx"), "EngineNotFound", "--container"),
        (engine(args='["vllm serve m & wait"]\n        command: [sh, -c]'), "BackgroundJob", "by hand"),
        (engine(args='[&x "--max-num-seqs=32"]\n        workingDir: *x'), "SharedAnchor", "anchor by hand"),
    ],
    ids=["controller", "custom-resource", "no-workload", "glued", "no-engine", "background", "anchor"],
)  # fmt: skip
def test_a_refusal_is_typed_prints_nothing_and_exits_with_3(run: Run, text: str, reason: str, hint: str) -> None:
    done = run("--set", "max_num_seqs=48", "m.yaml", m=text)
    assert (done.code, done.out) == (3, "")
    assert f"refused: {reason}: " in done.err
    assert hint in done.err
    assert "spec.targetRef" not in done.err and "Recommend" not in done.err
    done = run("--set", "max_num_seqs=48", "-o", "json", "m.yaml")
    assert done.code == 3
    told = json.loads(done.out)
    assert (told["targets"] or [told])[0]["reason"] == reason
    assert not any(target["changed"] for target in told["targets"])


def test_two_engines_in_a_pod_are_named(run: Run) -> None:
    text = engine() + "      - {name: second, image: 'vllm/vllm-openai:v0.9.0', args: [--max-num-seqs=4]}\n"
    done = run("--set", "max_num_seqs=48", "m.yaml", m=text)
    assert done.code == 3
    assert "Name one of vllm, second with --container." in done.err
    done = run("--set", "max_num_seqs=48", "--container", "second", "m.yaml")
    assert (done.code, done.out) == (0, text.replace("seqs=4]", "seqs=48]"))
    done = run("--set", "max_num_seqs=48", "--container", "third", "m.yaml")
    assert done.code == 3
    assert "third" in done.err


def test_one_refusal_leaves_every_file_as_it_was_unless_a_target_is_picked(run: Run, tmp_path: Path) -> None:
    done = run("-i", "--set", "max_num_seqs=48", "a.yaml", "b.yaml", a=PLAIN, b=engine("owned", OWNED))
    assert (done.code, done.out) == (3, "")
    assert "Nothing was changed" in done.err
    assert (tmp_path / "a.yaml").read_text() == PLAIN
    done = run("-i", "--set", "max_num_seqs=48", "--target", "Deployment/llama", "a.yaml", "b.yaml")
    assert (done.code, done.out) == (0, "")
    assert (tmp_path / "a.yaml").read_text() == PLAIN.replace("seqs=32", "seqs=48")
    assert (tmp_path / "b.yaml").read_text() == engine("owned", OWNED)


@pytest.mark.parametrize(
    ("meta", "tool"),
    [
        ("annotations: {argocd.argoproj.io/tracking-id: 'shop:apps/Deployment:x/llama'}", "Argo CD (shop)"),
        ("labels: {kustomize.toolkit.fluxcd.io/name: apps}", "Flux (apps)"),
        ("annotations: {meta.helm.sh/release-name: r}", "Helm (r)"),
    ],
)
def test_a_tools_file_is_edited_with_a_warning(run: Run, meta: str, tool: str) -> None:
    done = run("--set", "max_num_seqs=48", "m.yaml", m=engine(meta=meta))
    assert (done.code, done.out) == (0, engine(meta=meta, args='["--max-num-seqs=48"]'))
    assert f"warning: Deployment/llama (m.yaml): {tool} owns it" in done.err


@pytest.mark.parametrize(
    "args", [f'["--api-key", "{SECRET}", "--max-num-seqs", "4k"]', f'["--api-key={SECRET}", "x y"]']
)
def test_keys_are_in_no_message(run: Run, args: str) -> None:
    done = run("--set", "max_num_seqs=48", "m.yaml", m=engine(args=args))
    assert SECRET not in done.err
    assert SECRET not in run("--set", "max_num_seqs=48", "-o", "json", "m.yaml").out


# --- bad input --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["m.yaml"], "--set: nothing to change was given"),
        (["--set", "max_num_seqs", "m.yaml"], "--set: 'max_num_seqs' has no value"),
        (["--set", "max_num_seqs=", "m.yaml"], "--set: 'max_num_seqs' has no value"),
        (["--set", "seqs=4", "m.yaml"], "--set: 'seqs' is not a setting"),
        (["--set", "max_num_seqs=x", "m.yaml"], "--set: "),
        (["--set", "max_num_seqs=-3", "m.yaml"], "max_num_seqs"),
        (["--set", "max_num_seqs=4", "--set", "maxNumSeqs=5", "m.yaml"], "--set: max_num_seqs is given twice"),
        (["--set", "max_num_seqs=4", "--unset", "max_num_seqs", "m.yaml"], "--unset: max_num_seqs is given twice"),
        (["--set", "max_num_seqs=4", "none.yaml"], "FILE: none.yaml cannot be read (No such file"),
        (["--set", "max_num_seqs=4", "."], "FILE: . is a folder"),
        (["--set", "max_num_seqs=4", "-", "-"], "FILE: - is given twice"),
        (["--set", "max_num_seqs=4", "m.yaml", "m.yaml"], "FILE: m.yaml is given twice"),
        (["--set", "max_num_seqs=4", "-i", "-"], "--in-place: standard input"),
        (["--set", "max_num_seqs=4", "--diff", "-o", "json", "m.yaml"], "--diff: "),
        (["--set", "max_num_seqs=4", "--target", "deploy/x", "m.yaml"], "--target: 'deploy/x' is not in the input"),
        (["--set", "max_num_seqs=4", "bad.yaml"], "bad.yaml:1: is neither YAML nor JSON"),
        (["--set", "max_num_seqs=4", "helm.yaml"], "helm.yaml:3: this is a Helm template"),
        (["--set", "max_num_seqs=4", "latin.yaml"], "FILE: latin.yaml is not UTF-8 text (byte 3)"),
        (["--set", "max_num_seqs=4", "zeros.yaml"], "FILE: zeros.yaml holds bytes that are no text"),
        (["--set", "max_num_seqs=4"], "FILE"),
    ],
)
def test_bad_input_exits_with_2_and_names_what_to_do(run: Run, args: list[str], told: str) -> None:
    helm = "a: 1\nkind: x\nb: {{ .Values.x }}\n"
    done = run(*args, m=PLAIN, bad="a: b: c\n", helm=helm, latin=b"a: \xe9\n", zeros=b"a\0b")
    assert (done.code, done.out) == (2, "")
    assert told in done.err


def test_a_file_that_is_too_large_is_not_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "MOST_BYTES", 1024 * 1024)
    done = run("--set", "max_num_seqs=4", "m.yaml", m="#" * (1024 * 1024 + 1))
    assert (done.code, done.out) == (2, "")
    assert "FILE: m.yaml is larger than 1 MiB" in done.err


# --- in place ---------------------------------------------------------------------------------------------------------
def test_a_file_written_in_place_keeps_its_mode_and_its_link(run: Run, tmp_path: Path) -> None:
    real = tmp_path / "real.yaml"
    real.write_text(PLAIN)
    real.chmod(0o640)
    (tmp_path / "m.yaml").symlink_to(real)
    done = run("--in-place", "--set", "max_num_seqs=48", "m.yaml")
    assert (done.code, done.out) == (0, "")
    assert real.read_text() == PLAIN.replace("seqs=32", "seqs=48")
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert (tmp_path / "m.yaml").is_symlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.yaml", "real.yaml"]


def test_nothing_to_change_writes_no_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(PLAIN)
    before = (tmp_path / "m.yaml").stat()
    assert run("-i", "--set", "max_num_seqs=32", "m.yaml").code == 0
    after = (tmp_path / "m.yaml").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_write_that_fails_leaves_all_files_whole(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []

    def full(handle: int) -> None:
        synced.append(handle)
        if len(synced) == 2:
            raise OSError(28, "No space left on device", "b.yaml")

    monkeypatch.setattr(os, "fsync", full)
    done = run("-i", "--set", "max_num_seqs=48", "a.yaml", "b.yaml", a=PLAIN, b=engine("b"))
    assert done.code == 2
    assert "--in-place: b.yaml cannot be written (No space left on device)" in done.err
    assert (tmp_path / "a.yaml").read_text() == PLAIN
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.yaml", "b.yaml"]


def test_a_file_that_changed_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text("a: 1\n")
    (read,) = files_module.read_files([str(path)])
    path.write_text("a: 2\n")
    with pytest.raises(files_module.InputError, match="changed while it was edited"):
        files_module.write_files([(read, "a: 3\n")])
    assert path.read_text() == "a: 2\n"


def test_a_script_and_a_config_file_of_a_config_map_are_read(run: Run) -> None:
    text = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: scripts}
data:
  run.sh: |
    #!/bin/sh
    exec vllm serve m --port 8000 "$@"
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: m}
spec:
  template:
    spec:
      containers:
      - name: engine
        image: own:1
        command: [sh, /scripts/run.sh]
        args: ["--max-num-seqs", "32"]
        volumeMounts: [{name: s, mountPath: /scripts}]
      volumes: [{name: s, configMap: {name: scripts}}]
"""
    done = run("--set", "max_num_seqs=48", "m.yaml", m=text)
    assert (done.code, done.out) == (0, text.replace('"32"', '"48"'))
