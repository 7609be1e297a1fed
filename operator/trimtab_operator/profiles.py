"""The target's profile: of a ConfigMap with what `trimtab calibrate` wrote, or calibrated here from the target's own
metrics, if the spec asks for it. Without one nothing is simulated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trimtab.errors import TrimtabError
from trimtab.plan.looks import undisturbed_since
from trimtab.plan.preconditions import Ground
from trimtab.plan.spec import TunerSpec
from trimtab.tune.calibrated import baseline_profile
from trimtab_operator.cluster import Cluster
from trimtab_operator.evidence import refs
from trimtab_operator.recorder import Recorder
from trimtab_operator.sources import Sources
from trimtab_operator.target import Target

if TYPE_CHECKING:
    from trimtab.simulate.profile import Profile

Json = dict[str, Any]
_FIELD = "spec.search.profileConfigMapRef"


class Profiles:
    """Read anew for each proposal, parsed only when its text has changed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._parsed: dict[str, tuple[str, Profile]] = {}
        #: by uid of the tuner; memory only: after a restart it is calibrated anew
        self._calibrated: dict[str, Profile | None] = {}

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

    def calibrated(self, tuner: Json, sources: Sources, target: Target, ground: Ground) -> tuple[Profile | None, str]:
        """(profile, what came of a calibration made now, "" where none was): one for each search, at its beginning or
        at the first proposal of this process. The target is at rest: nothing stands against a trial.
        """
        spec, fleet, uid = ground.spec, ground.fleet, tuner["metadata"]["uid"]
        if uid in self._calibrated and ground.history:
            return self._calibrated[uid], ""
        assert fleet.configuration is not None  # no trial would begin
        ready = [(p.name, p.ip) for p in target.current_pods() if p.health.ready]
        pods = refs(ready, tuner["metadata"]["namespace"], target.read_engine(spec.target_ref.container)[2])
        since = undisturbed_since(spec, fleet.stable_seconds, ground.now)
        source = sources.of(tuner, spec)
        profile, said = baseline_profile(source, pods, fleet.configuration, fleet.observation, since, ground.now)
        self._calibrated[uid] = profile
        return profile, said


def profile_for(
    profiles: Profiles, sources: Sources, recorder: Recorder, tuner: Json, target: Target, ground: Ground
) -> Profile | None:
    """The profile to search with. What stands in the way of one is told in an Event, and stops nothing."""
    profile, problem = profiles.of(tuner, ground.spec)
    if problem:
        recorder.event(tuner, "ProfileUnreadable", problem, warning=True)
    if profile is not None or ground.spec.search.calibration == "None":
        return profile
    try:
        profile, said = profiles.calibrated(tuner, sources, target, ground)
    except TrimtabError as error:
        profile, said = None, f"not simulated: {error.told}"
    if said and profile is None:
        recorder.event(tuner, "NotCalibrated", said, warning=True)
    elif said:
        recorder.event(tuner, "Calibrated", said)
    return profile
