"""Fixtures that more than one folder uses (they cost nothing until a test asks for them), and hypothesis' profile."""

from hypothesis import settings

pytest_plugins = ["cluster_fixtures", "real_vllm"]

# speed is measured in benchmarks/, never in a test: a busy machine must not fail a property
settings.register_profile("trimtab", deadline=None)
settings.load_profile("trimtab")
