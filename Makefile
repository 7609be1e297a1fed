# Trimtab. `make` or `make help` lists the targets; each does all that it needs, the first time and every time.
SHELL := /bin/bash
.DEFAULT_GOAL := help
CACHE ?= $(or $(TRIMTAB_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/trimtab)
export TRIMTAB_CACHE := $(CACHE)
PYTHON ?= python3
# The venv lives outside the tree, keyed by what goes into it and by where this checkout is.
VENV_KEY := $(shell { cat pyproject.toml constraints.txt; pwd; $(PYTHON) -VV; } 2>/dev/null | sha256sum | cut -c1-12)
VENV := $(CACHE)/venv-$(VENV_KEY)
BIN := $(VENV)/bin

.PHONY: help
help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ See it work
.PHONY: demo try
demo: venv ## a badly set vLLM target is tuned on a real Kubernetes (root, Go; about 25 minutes the first time, 15 after)
	@$(BIN)/python -m hack.demo
try: venv ## the same loop without Kubernetes: emulated engines as processes (no root; first result in 3 minutes)
	@$(BIN)/trimtab tune --demo

##@ Tests
.PHONY: test test-failed test-fast lint test-cluster test-engine test-soak fuzz
test: lint venv cluster-build image ## everything: unit, cluster (real Kubernetes), engine (real vLLM); under 40 minutes once cached
	@$(BIN)/pytest -q -n 2 -m "not cluster and not engine and not soak" --durations=10; fast=$$?; \
	  $(BIN)/pytest -q -n 2 --dist loadfile -m "cluster and not engine and not soak" --durations=25; cluster=$$?; \
	  $(BIN)/pytest -q -m "engine and not soak" --durations=15 && exit $$((fast || cluster))
test-failed: venv cluster-build image ## once more what failed last time
	@$(BIN)/pytest -q --last-failed --last-failed-no-failures none -m "not soak" --durations=15
test-fast: lint venv ## no cluster, no engine; under 2 minutes
	@$(BIN)/pytest -q -n 2 -m "not cluster and not engine and not slow"
test-cluster: venv cluster-build image ## only tests on the real Kubernetes
	@$(BIN)/pytest -q -n 2 --dist loadfile --durations=15 -m "cluster and not engine and not soak"
test-engine: venv cluster-build image ## only tests with a real vLLM
	@$(BIN)/pytest -q --durations=15 -m "engine and not soak"
fuzz: venv ## new damaged inputs of every kind for five minutes; any crash is printed with what makes it again
	@$(BIN)/python benchmarks/fuzz.py --seconds 300
test-soak: venv cluster-build image ## longer variants: faults, kills at every write, the middleware's whole way on real engines (an hour more)
	@$(BIN)/pytest -q --durations=15 -m soak
lint: venv ## ruff, mypy --strict, import-linter
	@$(BIN)/ruff check --no-cache -q . && $(BIN)/ruff format -q --check . && $(BIN)/mypy && $(BIN)/lint-imports --no-cache >/dev/null || { $(BIN)/lint-imports --no-cache; exit 1; }

##@ Docs and release
.PHONY: docs docs-serve dist sbom audit
docs: venv ## the site of docs/ in build/site; fails on a broken link
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q
docs-serve: venv ## the same, on http://127.0.0.1:8000, anew on each change
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve -q

dist: venv ## wheel and source package in dist/python, the chart in dist/; what the release workflow publishes
	@rm -rf dist/python dist/*.tgz && $(BIN)/python -m hatchling build -t sdist -t wheel -d dist/python >/dev/null
	@helm=$$(PATH="$$PATH:$(CACHE)/cluster/bin" command -v helm) || { echo "helm is missing: install Helm, or run make cluster-build" >&2; exit 1; }; \
	  $$helm package charts/trimtab -d dist >/dev/null && ls dist dist/python
sbom: venv ## what the image's packages are, with versions and licences: dist/sbom.cdx.json (CycloneDX)
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && $(PYTHON) -m venv "$$dir" && mkdir -p dist \
	  && "$$dir/bin/pip" --disable-pip-version-check install -q -c constraints.txt '.[operator,postgres,dashboard]' \
	  && $(BIN)/cyclonedx-py environment "$$dir/bin/python" --pyproject pyproject.toml --of JSON -o dist/sbom.cdx.json && echo dist/sbom.cdx.json

# ids of known holes that do not touch us, each with the reason why; none now
AUDIT_IGNORED :=
audit: ## known holes in the pinned packages, by pip-audit; fails also where one cannot be asked about (needs the network)
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && $(PYTHON) -m venv "$$dir" \
	  && "$$dir/bin/pip" --disable-pip-version-check install -q pip-audit==2.10.1 \
	  && "$$dir/bin/pip-audit" --strict --progress-spinner off --no-deps --disable-pip -r constraints.txt $(addprefix --ignore-vuln ,$(AUDIT_IGNORED))

##@ The cluster (one real node, in namespaces of its own)
.PHONY: cluster-build cluster-up cluster-down
cluster-build:
	@hack/cluster/build.sh
cluster-up: cluster-build ## start it (12 minutes the first time: Kubernetes is compiled; seconds after)
	@hack/cluster/up.sh
cluster-down: ## stop it and remove all it made, but for the binaries
	@hack/cluster/down.sh

##@ Parts
.PHONY: venv image format clean-cache
venv: ## the Python environment, outside the tree
	@[ -f $(VENV)/ready ] || { echo "Python environment: $(VENV) (about 1 minute, once)"; rm -rf $(VENV); $(PYTHON) -m venv $(VENV) \
	  && $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt -e '.[dev]' && touch $(VENV)/ready; }
image: cluster-build ## the container image localhost/trimtab:dev
	@hack/image/build.sh
format: venv ## format the code
	@$(BIN)/ruff format -q . && $(BIN)/ruff check -q --fix .
clean-cache: cluster-down ## remove everything that was cached outside the tree
	rm -rf $(CACHE)
