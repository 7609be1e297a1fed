"""Rewritten shell forms run by a real shell: a fake vllm that prints its argv gets exactly the change."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from trimtab.engine.command import parse_template
from trimtab.engine.rewrite import rewrite
from trimtab.engine.settings import Value
from trimtab.engine.variables import environment, expand

CHANGES: dict[str, Value | None] = {"max_num_seqs": 48, "max_num_batched_tokens": 4096, "max_new_tokens": 77}
PRINT_ARGV = '#!/bin/sh\nprintf \'%s\\0\' {name} "$@" > "$OUT"\n'
QUIET = "#!/bin/sh\nexit 0\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folder of programs: vllm and python3 write down how they were called, all others do nothing."""
    folder = tmp_path / "bin"
    folder.mkdir()
    programs = {"vllm": PRINT_ARGV, "python3": PRINT_ARGV} | dict.fromkeys(("pip", "nvidia-smi", "setup", "ray"), QUIET)
    for name, text in programs.items():
        (folder / name).write_text(text.format(name=name))
        (folder / name).chmod(0o755)
    return folder


def argv_of(template: dict[str, Any], files: dict[str, str], path: Path) -> list[str]:
    """What the container's command line calls vLLM with, as the kubelet and a shell see it."""
    container = template["spec"]["containers"][0]
    known = environment(container)
    command = [expand(item, known).text for where in ("command", "args") for item in container.get(where, ())]
    for number, (name, text) in enumerate(files.items()):
        copy = path.parent / f"file{number}"
        copy.write_text(text)
        command = [item.replace(name, str(copy)) for item in command]
    command = ["-c" if item == "-lc" else item for item in command]  # a login shell finds its own PATH
    out = path.parent / "argv"
    variables = {name: value for name, value in known.items() if value is not None}
    env = {"PATH": f"{path}:{os.environ['PATH']}", "OUT": str(out), **variables}
    subprocess.run(command, env=env, check=True, timeout=20, cwd=path.parent, capture_output=True)
    return out.read_text().split("\0")[:-1]


def test_the_real_argv_changes_as_a_list_would(readable: dict[str, Any], path: Path) -> None:
    if readable["expect"]["shape"] != "shell" or readable.get("run") is False:
        pytest.skip("no script to run here")
    before, files = readable["template"], readable["files"]
    if parse_template(before, files=files).multi_node:
        pytest.skip("not rewritten")
    old = argv_of(before, files, path)
    new = argv_of(rewrite(before, CHANGES, files=files), files, path)
    as_list = {"spec": {"containers": [{"name": "engine", "command": old}]}}
    assert new == rewrite(as_list, CHANGES)["spec"]["containers"][0]["command"]
    assert new != old
