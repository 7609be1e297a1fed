"""Fixtures that more than one folder uses (they cost nothing until a test asks for them), and hypothesis' profile."""

import os

import pytest
from hypothesis import settings

pytest_plugins = ["cluster_fixtures", "real_vllm"]

# speed is measured in benchmarks/, never in a test: a busy machine must not fail a property
# the same examples each time, so that what lands fails for its own faults; TRIMTAB_EXPLORE=1 draws new ones
settings.register_profile("trimtab", deadline=None, derandomize=not os.environ.get("TRIMTAB_EXPLORE"))
settings.load_profile("trimtab")


@pytest.fixture(scope="session")
def compiled_scheduler() -> None:
    """The simulator's machine code is cached: the emulators that a test starts need not compile it (15 s each)."""
    from trimtab.simulate.precompile import precompile

    precompile()
