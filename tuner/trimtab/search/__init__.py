"""search: which configuration to try next. Knows no cluster and no metrics store.

space      what may be tried: ranges as a geometric lattice, so that duplicates are seen
candidate  `Proposal` and `Outcome`, what goes out and what comes back
refuse     why a configuration is not tried (again): tried, crashed, or above one that crashed
priors     informed first guesses from the engine's arithmetic and the findings
sampling   Optuna's sampler over the lattice       memory  Optuna's storage; may be lost at any time
study      the one to call: candidates, then priors, then the sampler

Only sampling and memory import Optuna, and only study imports them: everything else starts fast without it.
"""
