"""Metrics in: samples of pods from Prometheus or direct scrapes -> one `Observation` per pod and window.

In: pod names with addresses, a time range. Out: `Samples`, then `Observation`s made by a pure function.
A missing series is "no data" (None), never zero. Must not know the cluster or what a trial is.
"""
