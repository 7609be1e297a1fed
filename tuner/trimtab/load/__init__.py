"""Open-loop load on an OpenAI-compatible server, and an honest account of how each request ended.

In: a trace file or a few numbers (`trace`, `readers`, `generate`). Out: one Record per request (`records`) and a
Summary (`summary`). `prompt` makes the texts, `stream` reads the answers, `client` sends one request, `replay` sends
them all on time, `progress` shows it. This room knows no metrics store, no cluster and not the emulator: it sees a
server the way a user does, from outside.
"""
