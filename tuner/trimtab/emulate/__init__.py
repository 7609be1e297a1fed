"""A vLLM look-alike: same flags, API, errors and metric names on the simulator's scheduler, in real or scaled time.

In: a command line in vLLM's spelling, EMULATE_* variables, requests. Out: token streams with vLLM-like timing,
/metrics, and faults on command.

    prompt, api       what is asked for: tokens, their blocks, vLLM's limits and error messages
    times             seconds of a step: presets, a profile made by `trimtab calibrate`
    engine, live      the scheduler (`simulate.stepper`) driven in real time; a request while it is in it
    faults            what can be made to go wrong, from the start or while it runs
    server, stream    the web application and the bytes of answers
    hosting           user middleware and the web server, both as vLLM has them
    metrics, metric_table, web_metrics, flags, flag_table, environment, process   the look-alike process

It must not know Kubernetes, the operator or Optuna. It models timing and accounting, never what a model would say.
"""
