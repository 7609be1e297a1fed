"""search: which configuration to try next. Knows no cluster and no metrics store.

space      what may be tried: ranges as a geometric lattice, so that duplicates are seen
candidate  `Proposal` and `Outcome`, what goes out and what comes back
refuse     why a configuration is not tried (again): tried, crashed, or above one that crashed
priors     informed first guesses from the engine's arithmetic and the findings
sampling   Optuna's sampler over the lattice       memory  Optuna's storage; may be lost at any time
shared     one sweep that many workers share through a database
predict    what the simulator says of a configuration, where the target has a profile
bias       how far off it was in the trials so far      screen  what is dropped, what is tried first
study      the one to call: candidates, then priors (or the screen), then the sampler

Only sampling, memory and shared import Optuna, only predict and screen the simulator: what needs neither starts fast.
"""
