"""What is done about each command of the pages. A command that is not here fails the test, and so does a row for none.

Within a page the commands are run in the page's order: what one makes, the next may use.
"""

from __future__ import annotations

from typing import Final

from commands import By, Never, Run, Way

# --- not here ---------------------------------------------------------------------------------------------------------
_DOCKER: Final = Never("needs Docker and a registry; hack/image/build.sh makes the image that the cluster tests run")
_KIND: Final = Never("needs Docker and kind; the same tests and the demo run on hack/cluster")
_ITSELF: Final = Never("it is what runs this test; that the make target exists is tested in test_docs.py")
_VENV: Final = Never("downloads every dependency; `make venv` runs the same lines, tests/release a clean install")
_DEMO: Final = Never("minutes on a cluster of its own; its parts are tested in tests/demo, tests/cluster")
_TRY: Final = Never("5 minutes; its spec, load and loop are tested in tests/tune")
_TORCH: Final = Never("downloads torch; what it is for is tested where torch is: tests/predict")
_SWEEP: Final = Never("waits for the pods of an hour's Job; the worker itself is tested in tests/search/test_shared.py")

# --- elsewhere --------------------------------------------------------------------------------------------------------
_NEWCOMER: Final = "tests/cluster/test_newcomer.py::test_the_first_ten_minutes"
_HELM_TEST: Final = By(_NEWCOMER, ('"test", "trimtab"',))
_UNINSTALL: Final = By(_NEWCOMER, ('"uninstall", "trimtab"',))
_LEARNED: Final = "tests/predict/test_command.py::test_a_world_with_structure_is_learned"
_NO_TORCH: Final = "tests/predict/test_command.py::test_evaluate_and_show_need_no_torch"

# --- here -------------------------------------------------------------------------------------------------------------
_HELM_INSTALL: Final = (
    "helm install trimtab charts/trimtab -n trimtab-system --create-namespace --set image.repository=REGISTRY/trimtab"
)
_INSTALL: Final = Run(more="--set crds.install=false", says="STATUS: deployed")  # the CRDs are there, by another hand
_SPACE: Final = {"YOUR-NAMESPACE": "$namespace"}
_APPLY: Final = Run(swap=_SPACE, says="vllmtuner.trimtab.dev/llama")
_NAME: Final = {"NAME": "llama"}
_SUSPEND: Final = Run(swap=_NAME, says="patched")
_PAGE: Final = {"http://POD:8000/metrics": "$metrics"}
_DIAGNOSE: Final = Run(swap=_PAGE, more="--seconds 1")
_PORT: Final = {"8000": "$port"}
_PATIENT: Final = "curl -s --retry 60 --retry-connrefused --retry-delay 1"  # it starts meanwhile

_START: Final[dict[str, Way]] = {
    "make demo": _DEMO,
    "make test": _ITSELF,
    "make try": _TRY,
    "make test-fast": _ITSELF,
    "docker build -t REGISTRY/trimtab:0.1.0 . && docker push REGISTRY/trimtab:0.1.0": _DOCKER,
    _HELM_INSTALL: _INSTALL,
    "kubectl apply -n YOUR-NAMESPACE -f tuner.yaml": _APPLY,
    "kubectl patch vt NAME --type=merge -p '{\"spec\":{\"suspend\":true}}'": _SUSPEND,
    "trimtab diagnose http://POD:8000/metrics": _DIAGNOSE,
    "trimtab lint deploy/": Run(says="0 errors"),
}  # fmt: skip

TABLE: Final[dict[str, dict[str, Way]]] = {
    "README.md": {
        **_START,
        "trimtab rewrite --set max_num_seqs=48 deployment.yaml": Run(says="--max-num-seqs=48"),
        "trimtab kv config.json --prompt 1000 --max-new-tokens 512 --running 48": Run(says="reserved"),
    },
    "README.ko.md": {
        **_START,
        "trimtab tune -- vllm serve MODEL --max-num-seqs 256":
            Run(swap={"MODEL": "tiny"}, seconds=60, says="replicas", soak=True),
    },
    "CONTRIBUTING.md": {
        "python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e '.[dev]'": _VENV,
        ".venv/bin/pytest -q tests/plan": _ITSELF,
        '.venv/bin/pytest -q -m "cluster and not engine" tests/cluster/test_operator.py': _ITSELF,
    },
    "charts/trimtab/README.md": {
        _HELM_INSTALL: _INSTALL,
        "helm test trimtab -n trimtab-system": _HELM_TEST,
        "helm uninstall trimtab -n trimtab-system": _UNINSTALL,
    },
    "docs/claims.md": {
        "python benchmarks/claims.py cancel": Run(more="--cheap", says="HOLDS"),
        "python benchmarks/claims.py all --cheap": By(
            "tests/docs/test_claims.py::test_a_command_comes_to_the_verdicts_that_the_page_gives",
            ("claims.COMMANDS", "CHEAP"),
        ),
        "python benchmarks/claims.py all --write": By(
            "tests/docs/test_claims.py::test_a_run_of_one_command_rewrites_its_rows_alone", ("claims.write(",)
        ),
    },
    "docs/dashboard.md": {
        "kubectl -n trimtab-system port-forward svc/trimtab-dashboard 8081:80": Never(
            "needs the dashboard's pod; what it serves is tested in tests/cli/test_dashboard.py"
        ),
    },
    "docs/diagnose.md": {
        'trimtab diagnose http://POD:8000/metrics --args "--max-num-seqs 256"': _DIAGNOSE,
        "trimtab diagnose --prometheus http://HOST:9090 --selector 'namespace=\"prod\",pod=~\"llm-.*\"' --minutes 15":
            Run(swap={"http://HOST:9090": "$prometheus"}),
        "trimtab diagnose report.json": Run(says="CAUSE"),
        "trimtab diagnose -o json report.json": Run(says='"findings"'),
    },
    "docs/emulator.md": {
        "EMULATE_STEP_PRESET=tiny-cpu trimtab emulate serve tiny --max-num-seqs 64 --num-gpu-blocks-override 600"
        " --port 8000": Run(swap={**_PORT, "EMULATE_STEP": "EMULATE_FAULT_API=1 EMULATE_STEP"}, server=True),
        "curl -s localhost:8000/emulate/faults": Run(swap={"curl -s": _PATIENT, **_PORT}, says='"hang"'),
        "curl -s localhost:8000/emulate/faults -d '{\"hang\": true}'": Run(swap=_PORT, says="true"),
        "curl -s localhost:8000/emulate/faults -d '{\"hang\": false, \"leak_share\": 0.1}'":
            Run(swap=_PORT, says="0.1"),
    },
    "docs/explain.md": {
        "trimtab explain --profile target.json --slo-ttft 2 --slo-tpot 0.1": Run(says="max_num_seqs", soak=True),
        "trimtab explain --blocks 2588 --set max_num_seqs=16 --rate 6 --duration 120 --slo-ttft 2 --json -":
            Run(says='"'),
        "trimtab simulate --profile target.json --set max_num_seqs=32,64,128 --slo-ttft 2 --plot grid.html":
            Run(says="goodput"),
        "kubectl create configmap llm-profile --from-file=profile.json=target.json": Run(says="created"),
        "kubectl patch vt llm --type=merge -p '{\"spec\":{\"search\":{\"profileConfigMapRef\":"
        "{\"name\":\"llm-profile\",\"key\":\"profile.json\"}}}}'": Run(says="patched"),
    },
    "docs/gitops.md": {
        "kubectl get vt NAME -o jsonpath='{.status.recommendation.forms.helmValues}'": Run(swap=_NAME, says="args:"),
        "kubectl get vt NAME -o jsonpath='{.status.recommendation.patch}'": Run(swap=_NAME, says="kubectl patch"),
    },
    "docs/kubectl.md": {
        "kubectl trimtab status": Run(says="llama"),
        "kubectl trimtab status llama": Run(says="llama-2"),
        "kubectl trimtab watch llama": Run(seconds=30, says="llama"),
        "kubectl trimtab diff llama": Run(says="maxNumSeqs"),
    },
    "docs/kv-cache.md": {
        "trimtab kv --layers 32 --kv-heads 8 --head-size 128 --max-new-tokens 512 --generated 80 --running 48"
        " --replicas 4": Run(says="wasted"),
        "trimtab kv model/config.json --num-gpu-blocks 2588 --prompt 900 --max-new-tokens 512 --generated 80":
            Run(says="reserved"),
        "trimtab kv model/ --gpu-memory 80GiB -o json -- vllm serve model --tensor-parallel-size 2"
        " --kv-cache-dtype fp8": Run(says='"'),
    },
    "docs/lint.md": {
        "trimtab lint deploy/": Run(),
        "helm template my-chart | trimtab lint -": Run(),
        "trimtab lint -o sarif deploy/ > lint.sarif": Run(),
        "trimtab lint --severity-threshold warning deploy/": Run(),
    },
    "docs/local.md": {
        "trimtab tune --listen 127.0.0.1:8000 --slo-ttft 2.5 -- vllm serve Qwen/Qwen3-0.6B --max-num-seqs 256":
            Run(swap=_PORT, seconds=60, says="replicas", soak=True),
        "trimtab tune --load '--trace azure:FILE --rate 4' -- vllm serve MODEL":
            Run(swap={"FILE": "azure.csv", "MODEL": "tiny"}, seconds=60, says="replicas", soak=True),
        "trimtab tune --replicas 1 --load '--clients 64' -- vllm serve MODEL":
            Run(swap={"MODEL": "tiny"}, seconds=60, says="replicas", soak=True),
        "trimtab tune --simulate profile.json": Run(says="trial", soak=True),
    },
    "docs/middleware.md": {
        "kubectl create configmap trimtab-mw --from-file=tuner/trimtab/middleware/": Run(says="created"),
        "kubectl create configmap trimtab-policy --from-file=policy.json": Run(says="created"),
    },
    "docs/other-clusters.md": {
        "docker build -t localhost/trimtab:dev .": _DOCKER,
        "kind create cluster --name trimtab": _KIND,
        "kind load docker-image localhost/trimtab:dev --name trimtab": _KIND,
        "DEMO_CONTEXT=kind-trimtab make demo": _KIND,
        "kubectl delete vt --all -n trimtab-demo && kubectl delete namespace trimtab-demo":
            Run(swap={"trimtab-demo": "$namespace"}, more="--wait=false", says="deleted"),
        "helm uninstall trimtab -n trimtab-system": _UNINSTALL,
        "kubectl delete crd vllmtuners.trimtab.dev tuningtrials.trimtab.dev":
            Run(more="--dry-run=server", says="deleted"),
        "python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e '.[dev]'": _VENV,
        "DEMO_CONTEXT=kind-trimtab .venv/bin/pytest -q tests/cluster/test_crds.py tests/cluster/test_chart.py": _KIND,
    },
    "docs/report.md": {
        "kubectl get vllmtuners,tuningtrials -n prod -o json | trimtab report -f - -o report.html":
            Run(swap={"-n prod": "", "-f -": "-f - --tuner llama"}, says="report.html"),
        "trimtab report -f tune.json -o report.html --gpus 2 --gpu-price 2.5": Run(says="report.html"),
    },
    "docs/safety.md": {
        "kubectl patch configmap trimtab-kill-switch -n trimtab-system --type=merge"
        " -p '{\"data\":{\"stop\":\"true\",\"reason\":\"incident 42\"}}'": Run(says="patched"),
        "D=NAME T=TRIAL": Run(swap={"NAME": "llama", "TRIAL": "llama-2"}, keep=True),
        'get() { kubectl get tt $T -o jsonpath="{.spec.baseline.$1}"; }': Run(keep=True),
        "M=$(get minReadySeconds) P=$(get progressDeadlineSeconds)": Run(keep=True),
        'kubectl patch deployment $D --type=json -p "[\n'
        ' {\\"op\\":\\"replace\\",\\"path\\":\\"/spec/template\\",\\"value\\":$(get templateJson)},\n'
        ' {\\"op\\":\\"replace\\",\\"path\\":\\"/spec/strategy\\",\\"value\\":$(get strategyJson)},\n'
        ' {\\"op\\":\\"add\\",\\"path\\":\\"/spec/minReadySeconds\\",\\"value\\":${M:-0}},\n'
        ' {\\"op\\":\\"add\\",\\"path\\":\\"/spec/progressDeadlineSeconds\\",\\"value\\":${P:-600}},\n'
        ' {\\"op\\":\\"add\\",\\"path\\":\\"/spec/paused\\",\\"value\\":false},\n'
        ' {\\"op\\":\\"remove\\",\\"path\\":\\"/metadata/annotations/trimtab.dev~1trial\\"}]"': Run(says="patched"),
    },
    "docs/search-benchmark.md": {
        "python benchmarks/search.py --json figures.json --pictures docs/pictures": Never(
            "the whole benchmark: the better part of an hour; --quick is the same with less of everything"
        ),
        "python benchmarks/search.py --quick": Run(soak=True),
        "python benchmarks/search.py --set held-out --noise restless": Run(more="--quick", soak=True),
    },
    "docs/simulator.md": {
        "trimtab simulate --blocks 2588 --set max_num_seqs=64,128,256 --set enable_prefix_caching=true,false \\\n"
        "  --rate 4 --duration 300 --slo-ttft 2 --slo-tpot 0.05 \\\n"
        "  --times fixed=0.025,per_prefill_token=8.4e-5 --json -": Run(says='"results"'),
        "trimtab calibrate --prometheus http://prometheus:9090 --target serving/vllm-0 --last 6h --set max_num_seqs=128"
        " -o profile.json": By(
            "tests/simulate/test_calibrate.py::test_the_command_asks_prometheus",
            ('"--prometheus"', '"--target"', '"--last"', '"--set"', '"-o"'),
        ),
        "trimtab calibrate --metrics scrapes/ --set max_num_seqs=128 -o profile.json": By(
            "tests/simulate/test_calibrate.py::test_the_command_reads_files_and_writes_a_profile",
            ('"--metrics"', '"--set"', '"-o"'),
        ),
        "trimtab calibrate --log requests.jsonl --blocks 2588 --set max_num_seqs=256 -o profile.json":
            Run(says="Held out"),
        "trimtab simulate --profile profile.json --set max_num_seqs=64,128,256": Run(says="goodput"),
    },
    "docs/sweeps.md": {
        "export TRIMTAB_STORAGE_URL=postgresql://trimtab:PASSWORD@db.example/trimtab":
            Run(swap={"postgresql://trimtab:PASSWORD@db.example/trimtab": "$sqlite"}, keep=True),
        "trimtab sweep --study llama-8b-a100 --blocks 27000 --set max_num_seqs=32,64,128,256 --rate 6 --duration 1800"
        " --slo-ttft 2": Run(says="goodput"),
        "kubectl apply -f examples/sweep.yaml": Run(says="created"),
        "kubectl wait --for=condition=Complete --timeout=2h job/sweep": _SWEEP,
        "kubectl logs -l job-name=sweep --tail=-1 --prefix | less": _SWEEP,
    },
    "docs/targets.md": {
        "trimtab rewrite --set max_num_seqs=48 deployment.yaml": Run(says="--max-num-seqs=48"),
        "trimtab rewrite --set max_num_seqs=48 --diff deployment.yaml": Run(says="+"),
        "trimtab rewrite -i --set maxNumSeqs=48 --unset max_num_batched_tokens engines/*.yaml": Run(),
        "helm template release chart | trimtab rewrite --set max_num_seqs=48 - | kubectl apply -f -":
            Run(says="configured"),
        "trimtab rewrite --set max_num_seqs=48 -o patch --target deploy/llama all.yaml": Run(says='"op"'),
    },
    "docs/token-policy.md": {
        "pip install 'trimtab[predict]'": _TORCH,
        "trimtab predict train lengths.jsonl -o predictor.json": By(_LEARNED, ('"train"', '"-o"')),
        "trimtab predict evaluate predictor.json today.jsonl": By(_NO_TORCH, ('"evaluate"',)),
        "trimtab predict show predictor.json": By(_NO_TORCH, ('"show"',)),
    },
    "docs/tutorial.md": {
        f"{_HELM_INSTALL} --wait": _INSTALL,
        "helm test trimtab -n trimtab-system": _HELM_TEST,
        "kubectl apply -n YOUR-NAMESPACE -f tuner.yaml": _APPLY,
        "kubectl get vt -n YOUR-NAMESPACE": Run(swap=_SPACE, says="KvBound"),
        "kubectl get vt llama -n YOUR-NAMESPACE -o jsonpath='{.status.findings[0].message}{\"\\n\"}"
        "{.status.findings[0].advice}{\"\\n\"}'": Run(swap=_SPACE, says="requests wait"),
        "kubectl get vt llama -n YOUR-NAMESPACE -o jsonpath='{.status.recommendation.message}{\"\\n\"}"
        "{.status.recommendation.patch}{\"\\n\"}'": Run(swap=_SPACE, says="kubectl patch"),
        "helm upgrade trimtab charts/trimtab -n trimtab-system --reuse-values --set rbac.mode=Apply":
            Run(says="STATUS: deployed"),
        "kubectl patch vt llama -n YOUR-NAMESPACE --type=merge -p '{\"spec\":{\"mode\":\"Approve\"}}'":
            Run(swap=_SPACE, says="patched"),
        "kubectl get tt -n YOUR-NAMESPACE --watch": Run(swap=_SPACE, seconds=30, says="llama-2"),
        "kubectl annotate vt llama -n YOUR-NAMESPACE --overwrite trimtab.dev/approve=TRIAL":
            Run(swap={**_SPACE, "TRIAL": "llama-2"}, says="annotated"),
        "kubectl annotate vt llama -n YOUR-NAMESPACE --overwrite trimtab.dev/reject=TRIAL":
            Run(swap={**_SPACE, "TRIAL": "llama-2"}, says="annotated"),
        "kubectl patch vt llama -n YOUR-NAMESPACE --type=merge -p '{\"spec\":{\"suspend\":true}}'":
            Run(swap=_SPACE, says="patched"),
    },
}  # fmt: skip
