"""Options that describe a load, an SLO and how results come out, shared by the commands that simulate or send one."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

SLO_TTFT: Final = "Goodput counts requests with the first token within these seconds ..."
SLO_TPOT: Final = "... and that took at most these seconds per further token."


def _load(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Load")


ProcessesOption = Annotated[int | None, typer.Option(help="Worker processes. Default: one per core.")]
JsonOption = Annotated[str | None, typer.Option("--json", help="Results as JSON: FILE, or - for stdout.")]
RateOption = Annotated[str | None, _load("Requests per second, or steps 2@30,8@60,2 (rate @ seconds).")]
TraceOption = Annotated[str | None, _load("azure:FILE (CSV) or mooncake:FILE (JSONL); may be .gz. Default: generated.")]
PromptOption = Annotated[str, _load("Generated prompt tokens, lognormal: MEDIAN or MEDIAN:SIGMA.")]
OutputOption = Annotated[str, _load("Generated output tokens, lognormal: MEDIAN or MEDIAN:SIGMA.")]
SharedPrefixOption = Annotated[str | None, _load("SHARE:GROUPS:TOKENS, such as 0.5:4:512.")]
CancelOption = Annotated[float, _load("Share of requests (0-1) left mid-stream at a random token.")]
MaxTokensRatioOption = Annotated[str, _load("max_tokens / output length, LOW:HIGH.")]
MaxPromptTokensOption = Annotated[int | None, _load("Cut longer prompts to this.")]
MaxOutputTokensOption = Annotated[int | None, _load("Cut longer outputs to this.")]
PatienceOption = Annotated[float | None, _load("Seconds after which a client without a first token leaves.")]
SeedOption = Annotated[int, _load("Same seed, same results.")]
SloTtftOption = Annotated[float | None, _load(SLO_TTFT)]
SloTpotOption = Annotated[float | None, _load(SLO_TPOT)]
