"""From what a target shows (its metrics over time, or request logs) to a `Profile`: its load and its step times.

In: `Samples` or logs, and the settings that no metric shows. Out: a Profile with held-out errors, or a typed error that
says what is missing or what contradicts what. Knows no network and no terminal.
"""
