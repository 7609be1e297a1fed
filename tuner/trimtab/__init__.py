"""Trimtab keeps live vLLM deployments well tuned. This package decides; `trimtab_operator` acts on Kubernetes."""

__version__ = "0.1.0"
