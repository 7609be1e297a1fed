"""Which arm of an experiment a request belongs to. Pure: chance comes in as a number."""

from __future__ import annotations

import dataclasses
import zlib

from .policy_file import Admission, Arm, Experiment, Policy


def pod_arm(experiment: Experiment, pod: str) -> Arm | None:
    """The arm that names this pod, else the one without pods; None where requests are dealt."""
    if not any(arm.pods for arm in experiment.arms):
        return None
    named = next((arm for arm in experiment.arms if pod in arm.pods), None)
    return named or next((arm for arm in experiment.arms if not arm.pods), None)


def by_pods(experiment: Experiment) -> bool:
    return any(arm.pods for arm in experiment.arms)


def dealt(experiment: Experiment, key: bytes) -> Arm:
    """The arm of a request by the hash of its key: the same key is always in the same arm of the same experiment.

    CRC-32 over name and key, remixed so that keys that differ in few bits spread (Fibonacci hashing).
    """
    mixed = (zlib.crc32(key, zlib.crc32(experiment.name.encode())) * 0x9E3779B1) & 0xFFFFFFFF
    point = mixed / 2**32 * 100.0
    for arm in experiment.arms:
        point -= arm.percent or 0.0
        if point < 0:
            return arm
    return experiment.arms[-1]


def admission_of(policy: Policy, arm: Arm | None) -> Admission:
    """The file's admission, with what the arm of this pod replaces."""
    if arm is None or arm.admission is None:
        return policy.admission
    given = {f.name: getattr(arm.admission, f.name) for f in dataclasses.fields(Admission)}
    return dataclasses.replace(policy.admission, **{k: v for k, v in given.items() if v is not None})
