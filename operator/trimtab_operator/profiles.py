"""The profile that a tuner names: a ConfigMap with what `trimtab calibrate` wrote. Without it nothing is simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trimtab.errors import TrimtabError
from trimtab.plan.spec import TunerSpec
from trimtab_operator.cluster import Cluster

if TYPE_CHECKING:
    from trimtab.simulate.profile import Profile

Json = dict[str, Any]
_FIELD = "spec.search.profileConfigMapRef"


class Profiles:
    """Read anew for each proposal, parsed only when its text has changed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._parsed: dict[str, tuple[str, Profile]] = {}

    def of(self, tuner: Json, spec: TunerSpec) -> tuple[Profile | None, str]:
        """(profile, problem): a profile that cannot be read is told, and the search goes on without."""
        reference = spec.search.profile_config_map_ref
        meta = tuner["metadata"]
        if reference is None:
            self._parsed.pop(meta["uid"], None)
            return None, ""
        from trimtab.simulate.profile import parse_profile  # with numba behind it: only where it is asked for

        try:
            text = self._cluster.config_map_value(meta["namespace"], reference.name, reference.key, _FIELD)
            known = self._parsed.get(meta["uid"])
            if known is None or known[0] != text:
                known = (text, parse_profile(text, f"{_FIELD}: {reference.name}/{reference.key}"))
                self._parsed[meta["uid"]] = known
        except TrimtabError as error:
            return None, f"the search goes on without simulation: {error.told}"
        return known[1], ""
