"""`python -m trimtab.simulate.precompile`: compile what the simulator and the emulator run, into the cache.

For images, whose root is read-only later. The machine code is for any processor of the architecture when
NUMBA_CPU_NAME=generic is set here and later, else for this one.
"""

from __future__ import annotations

from trimtab.simulate.compiled import cache_folder
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.simulator import simulate
from trimtab.simulate.stepper import Stepper
from trimtab.simulate.workload import Workload


def precompile() -> None:
    """Call each entry of the compiled code once."""
    stepper = Stepper(EngineConfig(num_gpu_blocks=2), StepTimes())
    stepper.step()
    stepper.lose_blocks(0)
    load = Workload.of([0.0], [32], [1], chunks=[[0]], chunk_tokens=[32])
    simulate(load, EngineConfig(num_gpu_blocks=3, block_size=16), StepTimes())


if __name__ == "__main__":
    precompile()
    print(cache_folder())
