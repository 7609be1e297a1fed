"""Manifests for the CRDs' tests: minimal ones, and specs that are wrong, wrong for the API server only, and right."""

from __future__ import annotations

from typing import Any

Manifest = dict[str, Any]


def tuner(name: str = "llama", **changes: Any) -> Manifest:
    """A minimal VLLMTuner; `changes` replace or add fields of its spec, None removes one."""
    spec = {"targetRef": {"name": "llama"}, "metrics": {"direct": {}}, **changes}
    spec = {k: v for k, v in spec.items() if v is not None}
    return {"apiVersion": "trimtab.dev/v1alpha1", "kind": "VLLMTuner", "metadata": {"name": name}, "spec": spec}


def trial(name: str = "llama-1", **changes: Any) -> Manifest:
    spec = {
        "tunerName": "llama",
        "number": 1,
        "configuration": {"maxNumSeqs": 32, "enablePrefixCaching": True},
        "baselineConfiguration": {},
        "origin": "first guess",
        "baseline": {
            "deploymentUid": "1d0e9e0c",
            "templateJson": '{"spec":{}}',
            "strategyJson": "{}",
            "minReadySeconds": None,
            "paused": False,
            "replicas": 3,
            "progressDeadlineSeconds": 600,
            "templateHash": "abc",
            "candidateTemplateJson": '{"spec":{}}',
        },
        **changes,
    }
    return {"apiVersion": "trimtab.dev/v1alpha1", "kind": "TuningTrial", "metadata": {"name": name}, "spec": spec}


PROMETHEUS = {"prometheus": {"url": "http://prometheus:9090"}}

#: what is wrong -> the spec's changes, and what the message must say. Both twins refuse these.
WRONG: dict[str, tuple[Manifest, str]] = {
    "no target": ({"targetRef": None}, "spec.targetRef: Required value"),
    "target without a name": ({"targetRef": {}}, "spec.targetRef.name: Required value"),
    "target with an empty name": ({"targetRef": {"name": ""}}, "at least 1 chars long"),
    "target is a StatefulSet": ({"targetRef": {"name": "a", "kind": "StatefulSet"}}, 'supported values: "Deployment"'),
    "target of another API": ({"targetRef": {"name": "a", "apiVersion": "apps/v2"}}, 'supported values: "apps/v1"'),
    "unknown mode": ({"mode": "Manual"}, 'supported values: "Recommend", "Approve", "Auto"'),
    "no metrics": ({"metrics": None}, "spec.metrics: Required value"),
    "no source": ({"metrics": {}}, "set exactly one of metrics.prometheus and metrics.direct"),
    "two sources": (
        {"metrics": {**PROMETHEUS, "direct": {}}},
        "set exactly one of metrics.prometheus and metrics.direct",
    ),
    "url without a scheme": ({"metrics": {"prometheus": {"url": "prometheus:9090"}}}, "spec.metrics.prometheus.url"),
    "query limit 0": (
        {"metrics": {"prometheus": {"url": "http://p", "timeoutSeconds": 0}}},
        "should be greater than 0",
    ),
    "query limit too long": (
        {"metrics": {"prometheus": {"url": "http://p", "timeoutSeconds": 61}}},
        "less than or equal to 60",
    ),
    "half a secret": (
        {"metrics": {"prometheus": {"url": "http://p", "bearerTokenSecretRef": {"name": "s"}}}},
        "key: Required value",
    ),
    "scrape too often": ({"metrics": {"direct": {"intervalSeconds": 0.5}}}, "greater than or equal to 1"),
    "SLO of 0": ({"objective": {"slo": {"ttftSeconds": 0}}}, "spec.objective.slo.ttftSeconds"),
    "negative gain": ({"objective": {"minGainPercent": -1}}, "greater than or equal to 0"),
    "min above max": ({"search": {"maxNumSeqs": {"min": 64, "max": 32}}}, "min must not exceed max; swap them"),
    "min above max, tokens": (
        {"search": {"maxNumBatchedTokens": {"min": 9000, "max": 8000}}},
        "min must not exceed max; swap them",
    ),
    "min above max, policy": (
        {"tokenPolicy": {"maxNewTokens": {"min": 2, "max": 1}}},
        "min must not exceed max; swap them",
    ),
    "policy without the middleware": (
        {"tokenPolicy": {"policy": {"tokens": {"capMaxTokens": 9}}}},
        "policy needs middleware: Install",
    ),
    "percentile without a range": (
        {"tokenPolicy": {"middleware": "Install", "method": "Percentile"}},
        "method Percentile needs middleware: Install and maxNewTokens",
    ),
    "a cap of 0": (
        {"tokenPolicy": {"middleware": "Install", "policy": {"tokens": {"capMaxTokens": 0}}}},
        "greater than or equal to 1",
    ),
    "a value without its header": (
        {"tokenPolicy": {"middleware": "Install", "policy": {"rules": [{"match": {"headerValue": "x"}}]}}},
        "headerValue needs header",
    ),
    "an experiment of one's own": (
        {"tokenPolicy": {"middleware": "Install", "policy": {"experiment": {}}}},
        'unknown field "spec.tokenPolicy.policy.experiment"',
    ),
    "range without max": ({"search": {"maxNumSeqs": {"min": 64}}}, "spec.search.maxNumSeqs.max: Required value"),
    "range from 0": ({"search": {"maxNumSeqs": {"min": 0, "max": 9}}}, "greater than or equal to 1"),
    "unknown setting": (
        {"search": {"candidates": [{"maxSeqs": 4}]}},
        'unknown field "spec.search.candidates[0].maxSeqs"',
    ),
    "text for a number": ({"search": {"candidates": [{"maxNumSeqs": "32"}]}}, "candidates[0].maxNumSeqs"),
    "number for a switch": (
        {"search": {"candidates": [{"enablePrefixCaching": 1}]}},
        "candidates[0].enablePrefixCaching",
    ),
    "candidate of 0": ({"search": {"candidates": [{"maxNumSeqs": 0}]}}, "greater than or equal to 1"),
    "21 candidates": (
        {"search": {"candidates": [{"maxNumSeqs": n} for n in range(1, 22)]}},
        "must have at most 20 items",
    ),
    "0 trials": ({"search": {"maxTrials": 0}}, "greater than or equal to 1"),
    "half a trial": ({"search": {"maxTrials": 1.5}}, "spec.search.maxTrials"),
    "prefix caching On": ({"search": {"prefixCaching": "On"}}, 'supported values: "Tune", "Keep"'),
    "strategy BlueGreen": ({"rollout": {"strategy": "BlueGreen"}}, 'supported values: "Canary"'),
    "surge of 2": ({"rollout": {"maxSurge": 2}}, "less than or equal to 1"),
    "limit below measurement": (
        {"rollout": {"measurementSeconds": 901}},
        "must not be below measurementSeconds; raise it",
    ),
    "one restart a day": ({"rollout": {"maxRestartsPerDay": 1}}, "greater than or equal to 2"),
    "window at 24:00": ({"rollout": {"windows": [{"start": "24:00"}]}}, "windows[0].start"),
    "window on Someday": ({"rollout": {"windows": [{"days": ["Someday"]}]}}, '"Sat", "Sun"'),
    "no time zone": ({"rollout": {"windows": [{"timeZone": ""}]}}, "must be an IANA name such as Europe/Berlin"),
    "offset for a time zone": (
        {"rollout": {"windows": [{"timeZone": "+02:00"}]}},
        "must be an IANA name such as Europe/Berlin",
    ),
    "errors above all": ({"guardrails": {"maxErrorPercent": 101}}, "less than or equal to 100"),
    "latency below control's": ({"guardrails": {"maxLatencyRatio": 0.9}}, "greater than or equal to 1"),
    "misspelt field": ({"guardrails": {"maxErrorsPercent": 1}}, 'unknown field "spec.guardrails.maxErrorsPercent"'),
    "no history": ({"trialHistoryLimit": 0}, "greater than or equal to 1"),
}

#: the same, but only the API server refuses them: TunerSpec can live with them, or never sees them
WRONG_FOR_THE_SERVER: dict[str, tuple[Manifest, str]] = {
    "target with a slash": ({"targetRef": {"name": "deployment/llama"}}, "plain name of a Deployment, such as llama"),
    "empty candidate": ({"search": {"candidates": [{}]}}, "a candidate needs at least one of maxNumSeqs"),
    "candidate that cannot start": (
        {"search": {"candidates": [{"maxNumSeqs": 64, "maxNumBatchedTokens": 32}]}},
        "maxNumBatchedTokens must be at least maxNumSeqs",
    ),
    "ranges that cannot start": (
        {"search": {"maxNumSeqs": {"min": 64, "max": 99}, "maxNumBatchedTokens": {"min": 1, "max": 32}}},
        "maxNumBatchedTokens.max must be at least maxNumSeqs.min",
    ),
    "range beyond vLLM's": ({"search": {"maxNumSeqs": {"min": 1, "max": 2_000_000}}}, "spec.search.maxNumSeqs.max"),
    "measurement of one scrape": (
        {"rollout": {"measurementSeconds": 10}},
        "rollout.measurementSeconds must be at least 3 times metrics.direct.intervalSeconds",
    ),
    "gap below a scrape": (
        {"guardrails": {"maxMetricsGapSeconds": 4}},
        "guardrails.maxMetricsGapSeconds must be at least 2 times metrics.direct.intervalSeconds",
    ),
    "window without days": ({"rollout": {"windows": [{"days": []}]}}, "at least 1 items"),
    "one day twice": ({"rollout": {"windows": [{"days": ["Mon", "Mon"]}]}}, "Duplicate value"),
    "empty storage": ({"storage": {"url": ""}}, "at least 1 chars long"),
}

RIGHT: dict[str, Manifest] = {
    "minimal": {},
    "prometheus": {"metrics": PROMETHEUS},
    "prometheus, measured shortly": {"metrics": PROMETHEUS, "rollout": {"measurementSeconds": 1}},
    "one value": {"search": {"maxNumSeqs": {"min": 8, "max": 8}}},
    "whole numbers where fractions may be": {"rollout": {"measurementSeconds": 60, "maxMeasurementSeconds": 60}},
    "fractions": {"metrics": {"direct": {"intervalSeconds": 1.5}}, "rollout": {"measurementSeconds": 4.5}},
    "token budget without a range for sequences": {
        "search": {"maxNumSeqs": None, "maxNumBatchedTokens": {"min": 1, "max": 2}}
    },
    "fast demo": {
        "mode": "Auto",
        "metrics": {"direct": {"intervalSeconds": 1, "timeoutSeconds": 1}},
        "rollout": {"warmupSeconds": 0, "measurementSeconds": 5, "confirmationSeconds": 0, "cooldownSeconds": 0},
        "guardrails": {"windowSeconds": 3, "maxMetricsGapSeconds": 5},
        "preconditions": {"stableSeconds": 0, "minRequestsPerSecond": 0},
    },
    "everything": {
        "mode": "Approve",
        "suspend": True,
        "targetRef": {"name": "a.b-c", "container": "vllm"},
        "metrics": {
            "prometheus": {
                "url": "https://prometheus.monitoring:9090/prefix",
                "bearerTokenSecretRef": {"name": "s", "key": "token"},
                "caConfigMapRef": {"name": "c", "key": "ca.crt"},
                "timeoutSeconds": 0.5,
            }
        },
        "objective": {
            "slo": {"ttftSeconds": 2, "tpotSeconds": 0.05},
            "minGainPercent": 0,
            "maxLatencyRegressionPercent": 1000,
        },
        "search": {
            "maxNumSeqs": {"min": 1, "max": 1000000},
            "maxNumBatchedTokens": {"min": 1, "max": 1000000},
            "prefixCaching": "Keep",
            "candidates": [
                {"maxNumSeqs": 64, "maxNumBatchedTokens": 64, "enablePrefixCaching": False, "maxNewTokens": 1}
            ],
            "maxTrials": 200,
            "patience": 200,
            "seed": -1,
            "profileConfigMapRef": {"name": "llm-profile", "key": "profile.json"},
        },
        "tokenPolicy": {
            "maxNewTokens": {"min": 1, "max": 4096},
            "middleware": "Install",
            "method": "Percentile",
            "policy": {
                "tokens": {"defaultMaxTokens": 1024, "lowerClient": True},
                "rules": [
                    {
                        "match": {"route": "chat", "header": "x-tier", "headerValue": "free"},
                        "tokens": {"capMaxTokens": 9},
                    }
                ],
                "admission": {"maxSequences": 48, "kvBudgetTokens": 120000, "risk": 1.5, "estimate": "observed"},
            },
        },
        "rollout": {
            "maxSurge": 1,
            "windows": [{"days": ["Sat"], "start": "22:00", "end": "05:00", "timeZone": "America/Port-au-Prince"}],
        },
        "storage": {"url": "postgresql://optuna@db/trimtab"},
        "trialHistoryLimit": 500,
    },
}
