"""search: which configuration to try next. Knows no cluster and no metrics store.

space      what may be tried: ranges as a geometric lattice, so that duplicates are seen
candidate  `Proposal` and `Outcome`, what goes out and what comes back; scores on one scale
refuse     why a configuration is not tried (again): tried, crashed, or above one that crashed; another start
fits       whether the KV cache would still hold one request of full length
priors     informed first guesses from the engine's arithmetic and the findings
posterior  what the trials say of settings not tried: a Gaussian process over differences
prospects  which candidate promises most for what its trial costs      stakes   what it costs and may bring
method     the other samplers, its controls, behind one interface      sampling Optuna's part of them
context    the load of a trial: how alike two are, when one has drifted
memory     Optuna's storage; may be lost at any time; studies of like targets
shared     one sweep that many workers share through a database
predict    what the simulator says of a configuration, where the target has a profile
bias       how far off it was in the trials so far      screen  what is dropped, what is tried first
control    what random search would have found: the control beside a tuning figure
study      the one to call

Only method, sampling, memory, study and shared import Optuna, only predict, bias and screen the simulator: what needs
neither starts fast.
"""
