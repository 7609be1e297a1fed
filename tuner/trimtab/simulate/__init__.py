"""A discrete-event model of the vLLM v1 scheduler, to the step, with a model of how long a step takes.

In: a `Workload` (arrivals, lengths, shared prefixes, clients that leave), an `EngineConfig`, `StepTimes`. Out: what
every client saw and the engine's counters. Pure: no clock, no I/O (but for logs that a caller names), no randomness;
the same input gives the same bits. Knows no cluster, no metrics store and no load generator.
"""
