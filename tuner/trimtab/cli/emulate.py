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
        print(f"Hint: {error.hint}", file=sys.stderr)
        if "out of memory" in str(error):  # the last words of a real one: the cause, then who noticed
            print(f"(EngineCore) ERROR torch.OutOfMemoryError: {error}", file=sys.stderr)
            print(
                "(APIServer) RuntimeError: Engine core initialization failed. See root cause above. "
                "Failed core proc(s): {'EngineCore': 1}",
                file=sys.stderr,
            )
        else:
            print(f"(APIServer) ERROR {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except InputError as error:
        print(f"ERROR [emulate] {error}", file=sys.stderr)
        raise SystemExit(2) from None
