"""A vLLM look-alike: same flags, HTTP API and metric names on a modelled scheduler, for demos, tests and searches.

In: a command line in vLLM's spelling (or `SchedulerLimits`), and requests. Out: token streams with vLLM-like timing and
/metrics (`server`), or per-request records computed in virtual time (`virtual.simulate`).

    contract   what a scheduler model is given and gives back; nothing else here knows which model runs
    blocks     KV blocks with a prefix cache
    scheduler  the step-level model of the v1 scheduler (pure: no clock, no I/O)
    cost       seconds a step takes
    virtual    many requests against one configuration, without waiting
    engine     the same in real time, for the server
    metrics, web_metrics, flags, flag_table, environment, api, stream, server, process   the look-alike process

It must not know Kubernetes, the operator or Optuna. It models timing and accounting, never what a model would say.
"""
