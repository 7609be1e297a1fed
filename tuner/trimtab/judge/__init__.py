"""judge: numbers in, verdicts out. Pure: no I/O, no clock, no randomness.

verdict    slow and statistical: was the canary better than the control over the same minutes?
guardrail  fast, few samples: must the trial end now?
measures   what is compared, window by window, and which of it decides
bias       how far pods with equal settings lie apart; what more starts are worth
windows    pairs of windows made fit for statistics: unknown ones out, thin ones joined
stats      intervals for one look and for any number of them, bounds of histogram quantiles
objective  what a person wants

What it must not know: the cluster, Prometheus, Optuna, the spec's model.
"""
