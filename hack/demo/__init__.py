"""The demo: a badly set vLLM target is tuned on a real Kubernetes while it serves. Run it with `make demo`."""
