"""The one tree of errors. Each says what the user should do; the operator maps it once to a condition and a delay.

TrimtabError
|-- InputError              a person gave something wrong: names the field and the fix
|   |-- SpecError           ... in a VLLMTuner
|   `-- TraceError          ... in a trace file
|-- EngineError             the target's pod template
|   |-- EngineNotFound      no container, or more than one, runs vLLM
|   `-- RewriteRefused      the command line cannot be edited safely: Recommend mode still works
|-- MetricsError            the metrics source; "no data" is not an error but an unknown in the Observation
|   |-- MetricsUnreachable  retry, nothing is decided meanwhile
|   `-- MetricsRefused      credentials or certificate: retrying alone will not help
|-- TargetError             the target workload
|   |-- TargetNotFound
|   |-- TargetConflict      someone else wrote to it between our read and our write: look again, decide again
|   `-- TargetRefused       the API server said no (validation, RBAC, admission)
|-- SearchFailed            the search's own process died or hung: nothing is tried meanwhile
|-- ClusterUnavailable      the API server cannot be reached or timed out: retry
`-- StorageError            the study's storage: the study is memory and can be lost, so this never stops a rollback
"""

from __future__ import annotations


class TrimtabError(Exception):
    """Base of all. `str(error)` is what happened; `hint` is what the user should do about it; `reason` is a stable
    CamelCase name.
    """

    hint: str = "See the log of the operator."
    #: seconds after which trying again makes sense; None where only a person can help
    retry_seconds: float | None = 30.0

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint

    @property
    def reason(self) -> str:
        return type(self).__name__

    @property
    def told(self) -> str:
        """What happened and what to do about it, each once: some errors name the fix in their own text."""
        return str(self) if self.hint in str(self) else f"{self} {self.hint}"


class InputError(TrimtabError):
    """A person's input is wrong. `field` is where, `problem` what, `fix` how to mend it."""

    retry_seconds = None

    def __init__(self, field: str, problem: str, fix: str) -> None:
        super().__init__(f"{field}: {problem}", hint=fix)
        self.field, self.problem, self.fix = field, problem, fix

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}. {self.fix}"


class SpecError(InputError):
    """A VLLMTuner that passed the CRD's schema but cannot be worked with."""


class TraceError(InputError):
    """A trace file; `field` is `file:line` with the column."""


class EngineError(TrimtabError):
    """The target's pod template cannot be read or written as a vLLM engine."""

    retry_seconds = 60.0


class EngineNotFound(EngineError):
    """No container of the pod runs vLLM in a form Trimtab can read, or more than one does."""

    hint = (
        "Name the container in spec.targetRef.container; docs/targets.md lists the command-line shapes that are read."
    )


class RewriteRefused(EngineError):
    """The command line cannot be edited safely. `code` is a stable CamelCase name of why, listed in docs/targets.md."""

    hint = "Use mode Recommend and apply the printed settings in the manifest's own source."

    def __init__(self, message: str, *, hint: str | None = None, code: str = "NotEditable") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class MetricsError(TrimtabError):
    """The metrics source did not answer as it should."""


class MetricsUnreachable(MetricsError):
    """No connection, a timeout, or a 5xx."""

    hint = "Check spec.metrics.prometheus.url from inside the cluster, NetworkPolicies, and that Prometheus is ready."


class MetricsRefused(MetricsError):
    """401, 403 or a certificate that is not trusted."""

    hint = "Check spec.metrics.prometheus.bearerTokenSecretRef and caConfigMapRef."
    retry_seconds = 120.0


class TargetError(TrimtabError):
    """The target workload cannot be worked with now."""


class TargetNotFound(TargetError):
    hint = "Create the Deployment, or correct spec.targetRef in a new VLLMTuner (targetRef is immutable)."


class TargetConflict(TargetError):
    """Optimistic locking: the object changed between read and write. Not a fault; the next tick looks again."""

    hint = "Nothing to do: Trimtab looks again and decides again."
    retry_seconds = 1.0


class TargetRefused(TargetError):
    hint = "Read the API server's message; for 403 see which verbs the chart grants in your mode (values: rbac.mode)."
    retry_seconds = 60.0


class ClusterUnavailable(TrimtabError):
    hint = "The Kubernetes API server did not answer; Trimtab retries and the target stays as it is."
    retry_seconds = 5.0


class SearchFailed(TrimtabError):
    """No proposal: the process that searches died or took too long."""

    hint = "Give the operator more memory or CPU (values: resources); nothing is tried until the search answers."
    retry_seconds = 60.0


class StorageError(TrimtabError):
    """The study could not be read or written. The study is memory: work goes on without it."""

    hint = "Check spec.storage.url, or remove it to use a file in the operator's data volume."
