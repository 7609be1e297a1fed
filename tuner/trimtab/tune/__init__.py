"""tune: the tuning loop around the pure parts, and the target that is local processes instead of a Deployment.

In: a command line that starts an engine, a `TunerSpec`. Out: trials and the best command line. Must not know
Kubernetes.

    evidence, proposals   metrics -> Evidence, history -> next template: shared with the operator
    target                the `Target` interface and what a target shows
    argv                  a process's command line as the one container of a pod template
    process, replica      one child process; one place of the target
    frontdoor             TCP splice in front of the replicas
    local                 `Target` made of processes          state    the file that survives a kill
    loop                  look, decide, act, until the search has converged
    options, load, show   from a person's options to a spec; the built-in load; what is printed
    session, guard        one whole run; its lock, signals and log
    demo                  one scenario for every demo
"""
