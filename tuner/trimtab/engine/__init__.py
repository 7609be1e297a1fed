"""What vLLM is: its settings, its command line in a pod template.

In: pod templates (plain dicts) and configurations. Out: an `EngineCommand`, a rewritten template.
Knows no metrics store, no cluster, no clock.
"""
