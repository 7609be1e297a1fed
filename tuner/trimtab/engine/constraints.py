"""What must hold between settings; each setting's own limits are in `settings`."""

from __future__ import annotations

from trimtab.engine.settings import Configuration
from trimtab.errors import InputError


def check_configuration(configuration: Configuration) -> None:
    """Raises `InputError` naming both settings if vLLM would refuse to start with them together.

    Source: vLLM 0.32 `SchedulerConfig`: max_num_batched_tokens must be >= max_num_seqs. Only explicit values are
    compared: the defaults depend on version and device.
    """
    sequences, tokens = configuration.integer("max_num_seqs"), configuration.integer("max_num_batched_tokens")
    if sequences is not None and tokens is not None and tokens < sequences:
        raise InputError(
            "max_num_batched_tokens",
            f"{tokens} is less than max_num_seqs {sequences}",
            f"Use at least {sequences} max_num_batched_tokens or at most {tokens} max_num_seqs.",
        )
