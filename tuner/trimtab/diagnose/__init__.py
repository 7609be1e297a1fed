"""diagnose: an Observation and a Configuration in, findings out. Pure rules, one small file each, listed in
`rules.RULES`.

A rule that lacks an input says nothing: unknown is neither a finding nor health. Thresholds cite their source.
Feed it the combined Observation of the fleet; a fault of one pod is only seen when that pod's own Observation is fed.
"""
