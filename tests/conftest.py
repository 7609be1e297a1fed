"""Fixtures that more than one folder uses. They cost nothing until a test asks for them."""

pytest_plugins = ["cluster_fixtures", "real_vllm"]
