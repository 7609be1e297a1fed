"""The state machine: (spec, record, seen, now) -> decision. Pure: no I/O, no clock.

In: the tuner's spec, the trial's record (from the custom resource's status, the authority), what is seen of the target.
Out: a `Decision`: what the target should look like and the next record. Must not know Kubernetes or Optuna.
"""
