"""Runs kubectl. The only module of the plugin that starts a process. Every call has a time limit; every failure becomes
one of Trimtab's errors, with kubectl's own words.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trimtab.errors import ClusterUnavailable, InputError, TargetConflict, TargetNotFound, TargetRefused, TrimtabError
from trimtab.text import plain

Json = dict[str, Any]
#: what kubectl itself gives up after, and what is added before we end it
_REQUEST_SECONDS: Final = 15
_GRACE_SECONDS: Final = 5.0
#: Kubernetes' own rule for names (RFC 1123 subdomain): none begins with a dash, so none becomes an option
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_MOST_WORDS: Final = 600
#: a line of klog, such as "E1130 16:03:49.101227   23125 memcache.go:265] ..."
_KLOG: Final = re.compile(r"[EWIF]\d{4} \d\d:\d\d:\d\d\.\d+ ")

#: (arguments, standard input) -> (exit code, standard output, standard error)
Run = Callable[[Sequence[str], str | None], tuple[int, str, str]]


@dataclass(frozen=True)
class Access:
    """Which cluster and namespace; None is what kubectl takes by itself."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None
    everywhere: bool = False

    def options(self) -> list[str]:
        """For a call that names objects of a namespace."""
        scope = ["--all-namespaces"] if self.everywhere else ["-n", self.namespace] if self.namespace else []
        return [*self.cluster(), *scope]

    def cluster(self) -> list[str]:
        pairs = (("--context", self.context), ("--kubeconfig", self.kubeconfig))
        return [word for option, value in pairs if value is not None for word in (option, value)]


class Kubectl:
    """`run` is given in tests."""

    def __init__(self, access: Access, run: Run | None = None) -> None:
        self.access, self._run = access, run or _start

    def get(self, kinds: str, name: str = "", selector: str = "", everywhere: bool = False) -> list[Json]:
        """Objects of these kinds (`vllmtuners,tuningtrials`), or the one with a name."""
        scope = [*self.access.cluster(), "--all-namespaces"] if everywhere else self.access.options()
        chosen = [f"--selector={selector}"] if selector else []
        words = ["get", kinds, *([checked(name)] if name else []), "-o", "json", *chosen, *scope]
        data = json.loads(self.call(words) or "{}")
        found = data.get("items") if "items" in data else [data]
        return [o for o in found or [] if isinstance(o, dict)]

    def patch(self, kind: str, seen: Json, body: Any, how: str = "merge") -> Json:
        """Of the object as it was seen: TargetConflict if somebody changed it meanwhile. `how`: merge or json."""
        meta = seen["metadata"]
        version = meta["resourceVersion"]
        if how == "merge":
            body = {**body, "metadata": {**body.get("metadata", {}), "resourceVersion": version}}
        else:
            body = [{"op": "test", "path": "/metadata/resourceVersion", "value": version}, *body]
        words = ["patch", kind, meta["name"], "-n", meta["namespace"], f"--type={how}", "-o", "json",
                 "--field-manager=kubectl-trimtab", "--patch-file=/dev/stdin", *self.access.cluster()]  # fmt: skip
        answer: Json = json.loads(self.call(words, json.dumps(body)) or "{}")
        return answer

    def raw(self, path: str) -> str:
        """GET of a path of the API server, such as a pod's proxy."""
        return self.call(["get", "--raw", path, *self.access.cluster()])

    def may(self, verb: str, resource: str, namespace: str, as_user: str = "") -> bool | None:
        """Whether this person, or `as_user`, has the right; None where asking for another is not allowed."""
        words = ["auth", "can-i", verb, resource, "-n", namespace, *self.access.cluster()]
        code, out, err = self._run([*words, f"--as={as_user}"] if as_user else words, None)
        answer = out.strip().split("\n")[0]
        if answer in ("yes", "no"):
            return answer == "yes"
        if as_user and "impersonate" in err:
            return None
        raise _failure(code, err, f"kubectl auth can-i {verb} {resource}")

    def versions(self) -> Json:
        """kubectl's and the server's, as `kubectl version` prints them."""
        found: Json = json.loads(self.call(["version", "-o", "json", *self.access.cluster()]))
        return found

    def call(self, words: Sequence[str], given: str | None = None) -> str:
        code, out, err = self._run([*words, f"--request-timeout={_REQUEST_SECONDS}s"], given)
        if code == 0:
            return out
        raise _failure(code, err, f"kubectl {words[0]} {words[1]}")


def checked(name: str) -> str:
    """A name fit for an argument, else InputError."""
    if _NAME.fullmatch(name) is None:
        raise InputError("NAME", f"{plain(name, 80)!r} is no name of an object", "Use lower case, digits, - and dots.")
    return name


def _start(words: Sequence[str], given: str | None) -> tuple[int, str, str]:
    program = os.environ.get("KUBECTL") or shutil.which("kubectl")
    if program is None:
        raise InputError("PATH", "has no kubectl", "Install kubectl, or name it in the variable KUBECTL.")
    try:
        done = subprocess.run(
            [program, *words],
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            text=True,
            timeout=_REQUEST_SECONDS + _GRACE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterUnavailable(f"kubectl {words[0]} did not end in {error.timeout:.0f} s") from None
    except OSError as error:
        raise InputError(
            "KUBECTL", f"{program} cannot be started ({error.strerror})", "Name another kubectl."
        ) from error
    return done.returncode, done.stdout, done.stderr


def _failure(code: int, err: str, what: str) -> TrimtabError:
    """By the words of kubectl, which prints the server's reason in brackets."""
    told = [row for row in err.splitlines() if not _KLOG.match(row)]  # its own log repeats each try
    said = plain("\n".join(told) or err, _MOST_WORDS) or f"ended with {code}"
    text = f"{what}: {said}"
    if "(NotFound)" in err:
        return TargetNotFound(text, hint="See what is there: kubectl trimtab status -A")
    if "(Conflict)" in err or "the object has been modified" in err or "test operation" in err:
        return TargetConflict(text, hint="It changed meanwhile. Look at it again, then repeat the command.")
    if "the server doesn't have a resource type" in err:
        return TargetNotFound(text, hint="Trimtab's CRDs are not installed there: see README.md, or choose --context.")
    if "(Forbidden)" in err or "Unauthorized" in err or "(Invalid)" in err or "denied the request" in err:
        return TargetRefused(text, hint="Ask whoever runs the cluster for the right that is named.")
    return ClusterUnavailable(text, hint="Check the context and that the API server answers: kubectl version")
