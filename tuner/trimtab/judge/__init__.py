"""judge: numbers in, verdicts out. Pure: no I/O, no clock, no randomness.

verdict    slow and statistical: was the canary better than the control over the same minutes?
guardrail  fast, few samples: must the trial end now?
windows    pairs of windows made fit for statistics: unknown ones out, thin ones joined
stats      intervals for means of autocorrelated series, bounds of histogram quantiles

What it must not know: the cluster, Prometheus, Optuna, the spec's model.
"""
