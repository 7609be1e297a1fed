"""HTTP for metrics: sessions whose answers are bounded in size and total time, and one mapping of failures to typed
errors.

Hazards this guards against: `requests` has no default timeout; its timeout is per read, so a server that drips bytes
holds a thread for ever (headers that drip still can, therefore scrapes have a thread per pod); a body has no limit; a
redirect to a login page looks like success. Answers are never quoted in errors, except Prometheus' own error text: an
error ends in the status of a resource, and the address came from whoever wrote that resource.
"""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final, TypeVar

import requests
import urllib3

from trimtab.errors import MetricsError, MetricsRefused, MetricsUnreachable

T = TypeVar("T")
#: how long a pod may take to answer a question that is only a help
ASK_SECONDS: Final = 2.0
_CHUNK = 65_536
_log = logging.getLogger(__name__)


class BoundedSession(requests.Session):
    """Follows no redirect, reads no environment (proxies, .netrc), raises typed errors for anything but 200.

    limit_bytes counts after decompression; deadline_seconds covers the body. Not for use by several threads at once.
    """

    def __init__(
        self, what: str, *, limit_bytes: int, deadline_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self.trust_env = False
        self._what, self._limit, self._deadline, self._clock = what, limit_bytes, deadline_seconds, clock

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        return None

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        kwargs["stream"] = True
        started = self._clock()
        response = super().send(request, **kwargs)
        try:
            body = self._read(response, started + self._deadline)
        finally:
            response.close()
        response.raw = io.BytesIO(body)
        require_ok(response.status_code, body, self._what)
        return response

    def _read(self, response: requests.Response, until: float) -> bytes:
        """`read1` returns what has arrived, so that the deadline is looked at between packets."""
        body = bytearray()
        while chunk := response.raw.read1(_CHUNK, decode_content=True):
            body += chunk
            if len(body) > self._limit:
                raise MetricsUnreachable(f"{self._what} sent more than {self._limit >> 20} MiB")
            if self._clock() > until:
                raise MetricsUnreachable(f"{self._what} was still sending after {self._deadline:g} s")
        return bytes(body)


def ask_pod(ip: str, port: int, path: str, limit_bytes: int, read: Callable[[requests.Response], T]) -> T | None:
    """What `read` makes of a pod's answer to GET `path`; None, with a line for debugging, where it gives none."""
    what = f"{f'[{ip}]' if ':' in ip else ip}:{port}{path}"
    session = BoundedSession(what, limit_bytes=limit_bytes, deadline_seconds=ASK_SECONDS)
    try:
        with closing(session), typed_errors(what, ASK_SECONDS):
            return read(session.get(f"http://{what}", timeout=ASK_SECONDS))
    except MetricsError as error:
        _log.debug("no answer: %s", error)
        return None


def require_ok(status: int, body: bytes, what: str) -> None:
    """401 and 403 -> MetricsRefused.

    Any other status but 200 -> MetricsUnreachable with Prometheus' own error text, if it is one.
    """
    if status == 200:
        return
    if status in (401, 403):
        raise MetricsRefused(f"{what} answered {status}")
    if 300 <= status < 400:
        raise MetricsUnreachable(
            f"{what} redirects ({status}): give the final address; a login page in front needs a token"
        )
    raise MetricsUnreachable(f"{what} answered {status}{_own_words(body)}")


def _own_words(body: bytes) -> str:
    try:
        answer = json.loads(body[:65_536])
    except (ValueError, RecursionError):
        return ""
    if isinstance(answer, dict) and answer.get("status") == "error" and isinstance(answer.get("error"), str):
        return ": " + "".join(c if c.isprintable() else " " for c in answer["error"][:200])
    return ""


@contextmanager
def typed_errors(what: str, timeout_seconds: float) -> Iterator[None]:
    """Failures of requests and urllib3 as Trimtab's errors. `what` names the source without credentials."""
    try:
        yield
    except requests.exceptions.SSLError as error:
        raise MetricsRefused(f"{what}: TLS failed: {_root(error)}") from error
    except requests.exceptions.JSONDecodeError as error:
        raise MetricsUnreachable(f"{what} did not answer with JSON", hint=_NOT_PROMETHEUS) from error
    except (requests.Timeout, urllib3.exceptions.TimeoutError) as error:
        raise MetricsUnreachable(f"{what} did not answer within {timeout_seconds:g} s") from error
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        raise MetricsUnreachable(f"{what} cannot be reached: {_root(error)}") from error
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MetricsUnreachable(f"{what} answered with JSON of another shape", hint=_NOT_PROMETHEUS) from error


_NOT_PROMETHEUS = "Check that the URL is the base of a Prometheus HTTP API (no /graph, no login page in front)."


def _root(error: BaseException) -> str:
    """The innermost cause in few words: the outer texts repeat the address with the whole query."""
    seen: set[int] = set()
    inner: BaseException = error
    while id(inner) not in seen:
        seen.add(id(inner))
        args = [a for a in (getattr(inner, "reason", None), *inner.args) if isinstance(a, BaseException)]
        inner = inner.__cause__ or inner.__context__ or (args[0] if args else inner)
    text = getattr(inner, "strerror", None) or str(inner) or type(inner).__name__
    return "".join(c if c.isprintable() else " " for c in str(text)[:160])
