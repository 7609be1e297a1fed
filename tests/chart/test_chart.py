"""What the real helm renders: restricted pods, least rights, one source of CRDs, values that are checked."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]
Helm = Callable[..., subprocess.CompletedProcess[str]]


def of_kind(objects: list[Manifest], *kinds: str) -> list[Manifest]:
    return [o for o in objects if o["kind"] in kinds]


def pods(objects: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Every pod spec of a release, with the kind that carries it."""
    for o in objects:
        if o["kind"] == "Pod":
            yield "Pod", o["spec"]
        elif "template" in o.get("spec", {}):
            yield o["kind"], o["spec"]["template"]["spec"]


def rights(objects: list[Manifest]) -> set[tuple[str, str, str]]:
    """(role kind and namespace, resource, verbs) of each rule."""
    found = set()
    for role in of_kind(objects, "Role", "ClusterRole"):
        where = role["metadata"].get("namespace", "*")
        for rule in role["rules"]:
            for resource in rule["resources"]:
                only = f" named {','.join(rule['resourceNames'])}" if "resourceNames" in rule else ""
                found.add((where, resource + only, " ".join(rule["verbs"])))
    return found


#: what every mode needs where tuners live
READ = {
    ("vllmtuners", "get list watch patch"),
    ("tuningtrials", "get list watch create patch delete"),
    ("vllmtuners/status", "update"),
    ("tuningtrials/status", "update"),
    ("vllmtuners/finalizers", "update"),
    ("replicasets", "list"),
    ("pods/log", "get"),
    ("events", "create"),
    ("namespaces", "get"),
    ("inferenceservices", "get"),
    ("llminferenceservices", "get"),
    ("vllmruntimes", "get"),
}
LOOK = {("deployments", "get list"), ("pods", "list")}
#: trials on Deployments; the middleware's ConfigMaps, and the annotation on pods that brings a policy at once
APPLY = {
    ("deployments", "get list patch"),
    ("pods", "list patch"),
    ("configmaps", "get create patch"),
    ("poddisruptionbudgets", "list"),
    ("horizontalpodautoscalers", "list"),
    ("verticalpodautoscalers", "list"),
}
OWN = {("ops", "leases", "get create update"), ("ops", "configmaps named trimtab-kill-switch", "get")}
CRDS = ("*", "customresourcedefinitions named vllmtuners.trimtab.dev,tuningtrials.trimtab.dev", "get")


def test_lint_is_clean(helm: Helm, root: Path) -> None:
    done = helm("lint", "--strict", str(root / "charts" / "trimtab"))
    assert done.returncode == 0, done.stdout + done.stderr


# --- CRDs -------------------------------------------------------------------------------------------------------------
def test_the_charts_crds_are_copies_of_the_source(root: Path) -> None:
    def texts(folder: Path) -> dict[str, str]:
        return {p.name: p.read_text() for p in folder.glob("*.yaml")}

    assert texts(root / "charts/trimtab/files/crds") == texts(root / "crds"), (
        "run: cp crds/*.yaml charts/trimtab/files/crds/"
    )


def test_rendered_crds_are_the_source_and_are_kept(render: Render, root: Path) -> None:
    rendered = {c["metadata"]["name"]: c for c in of_kind(render(), "CustomResourceDefinition")}
    for path in (root / "crds").glob("*.yaml"):
        source = yaml.safe_load(path.read_text())
        crd = rendered.pop(source["metadata"]["name"])
        assert crd["metadata"]["annotations"].pop("helm.sh/resource-policy") == "keep"
        assert crd == source
    assert not rendered


def test_crds_can_be_left_out(render: Render) -> None:
    assert not of_kind(render({"crds.install": "false"}), "CustomResourceDefinition")


# --- brakes and limits ------------------------------------------------------------------------------------------------
def test_the_kill_switch_is_there_and_only_a_pulled_one_is_helms_to_lift(render: Render) -> None:
    """Helm resets what it has rendered: a `stop: "false"` would lift at each upgrade what a person pulled."""

    def switch(**values: str) -> Manifest:
        (found,) = [o for o in of_kind(render(values), "ConfigMap") if o["metadata"]["name"] == "trimtab-kill-switch"]
        return found

    assert "data" not in switch() and switch()["metadata"]["namespace"] == "ops"
    pulled = switch(**{"killSwitch.stop": "true", "killSwitch.reason": '"incident: 42"'})
    assert pulled["data"] == {"stop": "true", "reason": "incident: 42"}


def test_limits_reach_the_operator(render: Render) -> None:
    (deployment,) = of_kind(render({"limits.restartsPerNamespacePerDay": "1000000"}), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert "--concurrent-trials=10" in container["args"]
    assert "--restarts-per-namespace-per-day=1000000" in container["args"]


def test_output_to_a_config_map_is_a_right_of_its_own(render: Render) -> None:
    wanted = rights(render({"rbac.writeOutput": "true"})) - rights(render())
    assert wanted == {("*", "configmaps", "get create patch")}
    assert rights(render({"rbac.writeOutput": "true", "rbac.mode": '"Apply"'})) == rights(
        render({"rbac.mode": '"Apply"'})
    )


# --- pods -------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="session")
def everything(render: Render) -> list[Manifest]:
    """A release with all that is off by default."""
    return render(
        {
            "watchNamespaces": '["a","b"]',
            "rbac.mode": '"Apply"',
            "metrics.secrets": '[{"namespace":"a","name":"token"},{"namespace":"b","name":"other"}]',
            "metrics.configMaps": '[{"namespace":"a","name":"ca"}]',
            "podMonitor.enabled": "true",
            "serviceMonitor.enabled": "true",
            "networkPolicy": '{"enabled":true,"egress":[{}]}',
            "persistence.enabled": "true",
            "extraEnv": '[{"name":"A","value":"b"}]',
            "imagePullSecrets": '[{"name":"registry"}]',
        }
    )


@pytest.mark.parametrize("kind", ["Deployment", "Job", "Pod"])
def test_pods_meet_the_restricted_profile(everything: list[Manifest], kind: str) -> None:
    (spec,) = [s for k, s in pods(everything) if k == kind]
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & spec.keys()
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 65532
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert {next(k for k in v if k != "name") for v in spec["volumes"]} <= {"emptyDir", "persistentVolumeClaim"}
    for container in spec["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["requests"] and container["resources"]["limits"]["memory"]
        assert "privileged" not in context


@pytest.mark.parametrize("kind", ["Deployment", "Job", "Pod"])
def test_own_environment_variables_join_the_charts(everything: list[Manifest], kind: str) -> None:
    (spec,) = [s for k, s in pods(everything) if k == kind]
    assert [e["name"] for e in spec["containers"][0]["env"]] == ["POD_NAME", "USER", "HOME", "A"]


def test_the_operator_is_one_and_is_replaced_not_doubled(render: Render) -> None:
    (deployment,) = of_kind(render(), "Deployment")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


def test_the_operator_gets_its_arguments(render: Render) -> None:
    (deployment,) = of_kind(render({"watchNamespaces": '["a","b"]', "log.format": '"text"'}), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["trimtab-operator"]
    assert container["args"] == [
        "run", "--namespace=a", "--namespace=b", "--health-port=8080", "--metrics-port=9090", "--data-dir=/data",
        "--lease-namespace=ops", "--log-format=text", "--concurrent-trials=10", "--restarts-per-namespace-per-day=0",
    ]  # fmt: skip


def test_without_namespaces_it_serves_all(render: Render) -> None:
    for kind, spec in pods(render()):
        if kind != "Pod":
            assert "--all-namespaces" in spec["containers"][0]["args"], kind


def test_probes_and_ports_name_each_other(render: Render) -> None:
    (deployment,) = of_kind(render(), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {p["name"]: p["containerPort"] for p in container["ports"]} == {"health": 8080, "metrics": 9090}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": "health"}


def test_services_and_monitors_select_the_operator(everything: list[Manifest]) -> None:
    (deployment,) = of_kind(everything, "Deployment")
    operator = deployment["spec"]["template"]["metadata"]["labels"]
    (service,) = of_kind(everything, "Service")
    (pod_monitor,) = of_kind(everything, "PodMonitor")
    (service_monitor,) = of_kind(everything, "ServiceMonitor")
    (policy,) = of_kind(everything, "NetworkPolicy")
    assert service["spec"]["selector"].items() <= operator.items()
    assert pod_monitor["spec"]["selector"]["matchLabels"].items() <= operator.items()
    assert service_monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= operator.items()
    (job,) = of_kind(everything, "Job")
    assert not service["spec"]["selector"].items() <= job["spec"]["template"]["metadata"]["labels"].items()


def test_by_default_there_is_nothing_optional(render: Render) -> None:
    kinds = {o["kind"] for o in render()}
    assert kinds == {
        "ServiceAccount", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding",
        "Deployment", "Job", "Pod", "ConfigMap",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "volume"),
    [
        ({}, {"emptyDir": {"sizeLimit": "1Gi"}}),
        ({"persistence.enabled": "true"}, {"persistentVolumeClaim": {"claimName": "t-trimtab"}}),
        ({"persistence.existingClaim": '"mine"'}, {"persistentVolumeClaim": {"claimName": "mine"}}),
    ],
    ids=["by default", "own claim", "existing claim"],
)
def test_where_the_study_is_kept(render: Render, values: dict[str, str], volume: Manifest) -> None:
    objects = render(values)
    (deployment,) = of_kind(objects, "Deployment")
    assert {"name": "data", **volume} in deployment["spec"]["template"]["spec"]["volumes"]
    claims = [c["metadata"]["name"] for c in of_kind(objects, "PersistentVolumeClaim")]
    assert claims == (["t-trimtab"] if volume.get("persistentVolumeClaim") == {"claimName": "t-trimtab"} else [])


def test_a_digest_wins_over_the_tag(render: Render) -> None:
    digest = "sha256:" + "a" * 64
    (deployment,) = of_kind(
        render({"image": json.dumps({"repository": "r/t", "tag": "x", "digest": digest})}), "Deployment"
    )
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == f"r/t@{digest}"


# --- hooks ------------------------------------------------------------------------------------------------------------
def test_uninstall_first_rolls_back_trials(render: Render) -> None:
    (job,) = of_kind(render({"release.timeoutSeconds": "60"}), "Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    assert job["spec"]["activeDeadlineSeconds"] > 60
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == ["release", "--timeout=60", "--all-namespaces"]


def test_the_release_job_can_be_left_out(render: Render) -> None:
    assert not of_kind(render({"release.enabled": "false"}), "Job")


def test_helm_test_runs_check(render: Render) -> None:
    (pod,) = of_kind(render(), "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert pod["spec"]["containers"][0]["args"] == ["check", "--all-namespaces"]


# --- rights -----------------------------------------------------------------------------------------------------------
def test_rights_in_recommend_mode_write_nothing_of_the_targets(render: Render) -> None:
    assert rights(render()) == {("*", *r) for r in READ | LOOK} | {*OWN, CRDS}


def test_apply_mode_adds_patch_on_deployments_and_pods_and_config_maps(render: Render) -> None:
    more = rights(render({"rbac.mode": '"Apply"'}))
    less = rights(render())
    assert more - less == {("*", *r) for r in APPLY}
    assert less - more == {("*", *r) for r in LOOK}


def test_named_namespaces_get_a_role_each_and_no_cluster_wide_rights(everything: list[Manifest]) -> None:
    expected = {(n, *r) for n in ("a", "b") for r in READ | APPLY}
    expected |= {
        ("a", "secrets named token", "get"),
        ("b", "secrets named other", "get"),
        ("a", "configmaps named ca", "get"),
    }
    assert rights(everything) == expected | {*OWN, CRDS}


def test_no_cluster_scoped_rights_are_needed(render: Render) -> None:
    objects = render({"watchNamespaces": '["a"]', "rbac.readCrds": "false", "crds.install": "false"})
    assert not of_kind(objects, "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition")


def test_every_binding_names_a_role_and_the_operators_account(everything: list[Manifest]) -> None:
    roles = {
        (o["kind"], o["metadata"]["name"], o["metadata"].get("namespace"))
        for o in of_kind(everything, "Role", "ClusterRole")
    }
    (account,) = of_kind(everything, "ServiceAccount")
    bound = set()
    for binding in of_kind(everything, "RoleBinding", "ClusterRoleBinding"):
        bound.add((binding["roleRef"]["kind"], binding["roleRef"]["name"], binding["metadata"].get("namespace")))
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": "ops"}
        ]
    assert bound == roles


def test_no_rule_has_a_wildcard(everything: list[Manifest]) -> None:
    assert "*" not in json.dumps([role["rules"] for role in of_kind(everything, "Role", "ClusterRole")])


# --- values -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("rbac.mode", '"Auto"', "/rbac/mode"),
        ("rbac.mod", '"Apply"', "mod"),
        ("replicas", "2", "replicas"),
        ("watchNamespaces", '"ml"', "/watchNamespaces"),
        ("watchNamespaces", '["ML"]', "/watchNamespaces/0"),
        ("watchNamespaces", '["a","a"]', "/watchNamespaces"),
        ("crds.install", '"yes"', "/crds/install"),
        ("image.pullPolicy", '"Sometimes"', "/image/pullPolicy"),
        ("image.digest", '"latest"', "/image/digest"),
        ("image.repository", '""', "/image/repository"),
        ("metrics.secrets", '["token"]', "/metrics/secrets/0"),
        ("metrics.secrets", '[{"name":"token"}]', "namespace"),
        ("log.format", '"yaml"', "/log/format"),
        ("release.timeoutSeconds", '"5m"', "/release/timeoutSeconds"),
        ("persistence.size", '"big"', "/persistence/size"),
        ("persistence.accessModes", "[]", "/persistence/accessModes"),
        ("podMonitor.interval", '"often"', "/podMonitor/interval"),
        ("extraEnv", '[{"value":"x"}]', "name"),
    ],
)
def test_wrong_values_are_refused_by_name(helm: Helm, root: Path, path: str, value: str, named: str) -> None:
    done = helm("template", "t", str(root / "charts" / "trimtab"), "--set-json", f"{path}={value}")
    assert done.returncode != 0
    assert named in done.stderr


def test_every_value_is_in_the_schema_and_the_other_way_round(root: Path) -> None:
    chart = root / "charts" / "trimtab"
    values = yaml.safe_load((chart / "values.yaml").read_text())
    schema = json.loads((chart / "values.schema.json").read_text())

    def compare(value: Manifest, part: Manifest, path: str) -> None:
        if "properties" not in part:
            return
        assert part["additionalProperties"] is False, path
        assert value.keys() == part["properties"].keys() - {"global", "claims"}, path
        for name, child in value.items():
            if isinstance(child, dict):
                compare(child, part["properties"][name], f"{path}.{name}")

    compare(values, schema, "values")


def test_notes_name_the_next_command(root: Path) -> None:
    notes = (root / "charts/trimtab/templates/NOTES.txt").read_text()
    assert "kubectl apply" in notes and "kubectl get vt" in notes and "helm uninstall" in notes


def test_long_release_names_stay_valid(helm: Helm, root: Path) -> None:
    done = helm("template", "r" * 53, str(root / "charts" / "trimtab"), "--namespace", "n" * 63)
    assert done.returncode == 0, done.stderr
    for o in yaml.safe_load_all(done.stdout):
        limit = 253 if o["kind"] in {"ClusterRole", "ClusterRoleBinding"} else 63
        assert len(o["metadata"]["name"]) <= limit
