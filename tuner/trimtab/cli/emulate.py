"""`trimtab emulate [serve] MODEL ...`: a vLLM look-alike server. Arguments are vLLM's own, passed on untouched."""

from __future__ import annotations

import sys

from trimtab.emulate.flags import StartupError
from trimtab.emulate.process import serve
from trimtab.errors import InputError


def run(args: list[str]) -> None:
    """Serve until SIGTERM. Exits 1 when the engine would not start, 2 for a bad flag or EMULATE_ variable."""
    try:
        serve(args)
    except StartupError as error:
        print(
            f"ERROR [emulate] Engine core initialization failed.\ntorch.OutOfMemoryError: {error}"
            if "out of memory" in str(error)
            else f"ERROR [emulate] {error}",
            file=sys.stderr,
        )
        print(f"Hint: {error.hint}", file=sys.stderr)
        raise SystemExit(1) from None
    except InputError as error:
        print(f"ERROR [emulate] {error}", file=sys.stderr)
        raise SystemExit(2) from None
