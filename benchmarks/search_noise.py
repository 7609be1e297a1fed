"""The noise of recorded runs of a real vLLM, which the search's benchmark draws from (search_trial.Noise).

    python benchmarks/search_noise.py FOLDER     # as benchmarks/vllm_cpu.py takes it

A run's slowness is the factor by which the calibrated step times must be multiplied for its decodes to last as long as
they did; a window is a fifth of its requests. Runs known or found to be disturbed are left out.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from vllm_cpu import CALIBRATE, FOUND_DISTURBED, KNOWN_DISTURBED, calibrate, recorded, slowness

WINDOWS = 5
#: runs whose limit never bound, so that they made the same decisions
ALIKE = (
    ("b320_s32_apc_c30", "b320_s64_apc_c30", "b320_s128_apc_c30"),
    ("b320_s64_noapc_c0", "b320_s128_noapc_c0"),
    ("b320_s64_apc_c0", "b320_s128_apc_c0"),
)


def main() -> None:
    runs = {r.name: r for r in map(recorded, sorted(Path(sys.argv[1]).glob("*.json.gz")))}
    times = calibrate([runs[n] for n in CALIBRATE.split(",")]).times
    whole, windows = {}, []
    for name, run in runs.items():
        if name in KNOWN_DISTURBED + FOUND_DISTURBED:
            continue
        whole[name] = float(np.log(slowness(run, times)))
        which = np.arange(len(run.load)) * WINDOWS // len(run.load)
        parts = np.log([slowness(run, times, which == i) for i in range(WINDOWS)])
        windows.append(parts - parts.mean())
    off = np.array(windows)
    squares = float((off**2).sum())
    within = (squares / ((WINDOWS - 1) * len(off))) ** 0.5
    rho = float((off[:, 1:] * off[:, :-1]).sum()) / squares
    alike = [np.array([whole[n] for n in names]) for names in ALIKE]
    same = (sum(float(((a - a.mean()) ** 2).sum()) for a in alike) / sum(len(a) - 1 for a in alike)) ** 0.5
    print(f"{len(off)} runs, log slowness: window of {len(run.load) // WINDOWS} requests {within:.3f}, lag 1 {rho:.2f}")
    print(f"between whole runs {np.std(list(whole.values()), ddof=1):.3f}, of them with the same decisions {same:.3f}")


if __name__ == "__main__":
    main()
