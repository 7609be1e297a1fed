"""What must hold between settings; each setting's own limits are in `settings`."""

from __future__ import annotations

from trimtab.engine.settings import Configuration
from trimtab.engine.tunables import violations
from trimtab.errors import InputError


def check_configuration(configuration: Configuration, version: str | None = None) -> None:
    """Raises `InputError` naming both settings if vLLM would refuse to start with them together, or in that version.

    Only explicit values are compared: the defaults depend on version and device.
    """
    for found in violations(dict(configuration), version):
        raise InputError(found.name, found.problem, found.fix)
