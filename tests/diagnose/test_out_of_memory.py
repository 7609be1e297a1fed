from __future__ import annotations

from case_shapes import busy, found


def test_a_gpu_that_ran_out_is_a_matter_of_settings() -> None:
    finding = found(
        "OutOfMemory", busy(), args="--gpu-memory-utilization 0.98", facts=["CUDA out of memory under load"]
    )
    assert finding is not None and finding.tunable and "gpu_memory_utilization" in finding.settings
    assert finding.evidence["gpu_memory_utilization"] == 0.98


def test_a_pod_that_the_kernel_killed_is_not() -> None:
    finding = found("OutOfMemory", busy(), facts=["pod was OOMKilled, exit code 137"])
    assert finding is not None and not finding.tunable


def test_a_denial_does_not_count() -> None:
    assert found("OutOfMemory", busy(), facts=["no out of memory was seen"]) is None
