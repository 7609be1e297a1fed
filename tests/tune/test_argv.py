"""Command lines of processes are edited by the operator's own rewriting."""

from __future__ import annotations

import sys

import pytest

from trimtab.engine.rewrite import rewrite
from trimtab.errors import InputError
from trimtab.tune.argv import CommandLine, configuration_of, words_of


def test_a_setting_is_changed_where_it_stands_and_the_port_goes_last() -> None:
    line = CommandLine.read(["vllm", "serve", "m", "--max-num-seqs", "256", "--port", "9"])
    after = rewrite(line.template, {"max_num_seqs": 16, "enable_prefix_caching": True})
    argv = line.argv(after, 1234)
    assert argv[:5] == ["vllm", "serve", "m", "--max-num-seqs", "16"]
    assert argv[-4:] == ["--host", "127.0.0.1", "--port", "1234"]
    assert dict(configuration_of(after)) == {"enable_prefix_caching": True, "max_num_seqs": 16}
    assert line.paste_ready(after) == "vllm serve m --max-num-seqs 16 --port 9 --enable-prefix-caching"


@pytest.mark.parametrize("given", [["trimtab", "emulate", "serve", "m"], ["trimtab", "emulate", "m"]])
def test_the_emulator_is_read_as_vllm_and_started_as_itself(given: list[str]) -> None:
    line = CommandLine.read(given)
    assert words_of(line.template) == ["vllm", "serve", "m"]
    assert line.argv(line.template, 1)[:6] == [sys.executable, "-m", "trimtab.cli.main", "emulate", "serve", "m"]
    assert line.paste_ready(line.template) == "trimtab emulate serve m"


def test_python_modules_are_engines() -> None:
    line = CommandLine.read(["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"])
    assert line.argv(line.template, 5)[-1] == "5"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "no command"),
        (["sleep", "9"], "no container of the pod runs vLLM"),
        (["sh", "-c", "vllm serve m"], "shell script"),
        (["vllm", "serve", "m", "--ssl-keyfile", "k"], "HTTPS"),
        (["vllm", "serve", "m", "--disable-log-stats"], "removes the metrics"),
        (["vllm", "serve", "m", "--nnodes", "2"], "several processes"),
    ],
)
def test_what_cannot_be_tuned_is_refused(argv: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        CommandLine.read(argv)
