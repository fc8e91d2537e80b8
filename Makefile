# FedREP: `make help` lists the targets. Everything lives in .venv; nothing is installed elsewhere but Debian's Chromium, where it can be.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PROTO := $(wildcard proto/fedrep/wire/v1/*.proto)
PIP := $(BIN)/python -m pip --disable-pip-version-check
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-stress check bench bench-peers paper format clean test-browser pictures test-images chart policies fuzz load soak chaos proto web wheelhouse browser release crds foreign-clients locks base image-tools registry promtool

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | awk -F'\t' '{printf "  %-14s %s\n", $$1, $$2}'

setup: $(STAMPS)/installed $(STAMPS)/web ## Make the virtual environment and build the dashboard's pages

$(STAMPS)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "FedREP needs Python 3.11 or newer as '$(PYTHON)'. Install it (Debian: apt-get install python3 python3-venv) or say make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "setup: making the virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { echo "Python cannot make virtual environments here. Install the venv module (Debian: apt-get install python3-venv)."; exit 1; }
	@mkdir -p $(STAMPS) && touch $@

# torch goes first and by its exact version, so that nothing pulls another build of it.
$(STAMPS)/installed: $(STAMPS)/python pyproject.toml constraints.txt
	@echo "setup: updating pip and setuptools"
	@$(PIP) install --quiet --upgrade pip setuptools
	@echo "setup: fetching and installing torch, the largest part; minutes on a slow line"
	@$(PIP) install --quiet torch==2.13.0
	@echo "setup: installing FedREP and everything else that it uses; minutes on a slow machine"
	@$(PIP) install --quiet --editable '.[server,client,dashboard,lab,speed,huggingface,onnx,parquet,ray,mlflow,tensorboard,wandb,dev]'
	@touch $@

WEB_SOURCES := $(shell find dashboard/web -type f -not -path '*/node_modules/*' 2>/dev/null)
$(STAMPS)/web: $(STAMPS)/installed $(WEB_SOURCES)
	@echo "setup: building the dashboard's pages"
	@$(BIN)/python dashboard/build.py
	@touch $@

web: $(STAMPS)/web ## Build the dashboard's pages

demo: setup ## Run a whole federation on this machine, with attackers and a live dashboard
	@$(BIN)/fedrep demo $(DEMO)

test: setup browser promtool ## Run the tests: unit, protocol, contract, services, browser smoke, deployment
	$(BIN)/python -m pytest -n 2 --dist loadfile --ignore tests/chaos/test_random_kills.py --ignore tests/images $(TESTS)

test-stress: setup browser promtool ## The tests three times while something else keeps every core busy, and once more in a shuffled order
	$(BIN)/python -m tests.stress $(STRESS)

browser: $(STAMPS)/installed
	@command -v chromium >/dev/null 2>&1 || { command -v apt-get >/dev/null 2>&1 && [ "$$(id -u)" = 0 ] && { \
	  echo "installing Debian's Chromium for the browser tests"; \
	  apt-get update -qq >/dev/null 2>&1; apt-get install -y -qq --no-install-recommends chromium >/dev/null 2>&1; }; } || true
	@command -v chromium >/dev/null 2>&1 || echo "Chromium is missing, so browser tests will be skipped. Install it (Debian: apt-get install chromium)."

# Taken out of Debian's package, which would start a Prometheus where it is installed.
promtool: $(STAMPS)/installed
	@command -v promtool >/dev/null 2>&1 || test -x $(BIN)/promtool || { command -v apt-get >/dev/null 2>&1 && command -v dpkg-deb >/dev/null 2>&1 && { \
	  echo "fetching Debian's promtool for the tests of the alert rules"; folder=$$(mktemp -d); \
	  { [ "$$(id -u)" != 0 ] || apt-get update -qq; cd $$folder && apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb . \
	    && cp usr/bin/promtool $(CURDIR)/$(BIN)/promtool; } >/dev/null 2>&1; rm -rf $$folder; }; } || true
	@command -v promtool >/dev/null 2>&1 || test -x $(BIN)/promtool || echo "promtool is missing, so alert rules are not played. Install it (Debian: apt-get install prometheus)."

check: setup ## Lint, types, import contracts, protobuf drift, lint and compatibility
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint
	$(BIN)/buf breaking --against proto/v1.binpb
	@$(BIN)/python -m grpc_tools.protoc -I proto --python_out=$(STAMPS) --pyi_out=$(STAMPS) --grpc_python_out=$(STAMPS) $(PROTO)
	@for file in $(STAMPS)/fedrep/wire/v1/*; do cmp -s $$file fedrep/wire/v1/$$(basename $$file) || { \
	  echo "fedrep/wire/v1/$$(basename $$file) does not match proto/: run make proto and commit the result"; exit 1; }; done

proto: $(STAMPS)/installed ## Generate the Python code of the contract
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=. --pyi_out=. --grpc_python_out=. $(PROTO)

format: $(STAMPS)/installed ## Format the code
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format --quiet .

bench: setup ## Measure against peers and floors, as ratios in one run
	$(BIN)/python -m benchmarks

bench-peers: setup ## Flower, NVFlare and byzfl against FedREP, each in an environment of its own under .bench/
	$(BIN)/python -m benchmarks secagg aggregators rivals

paper: setup ## Regenerate the paper's figures (PRESET=smoke|laptop|paper, DATA=folder)
	$(BIN)/fedrep lab run all --preset $(or $(PRESET),smoke) $(if $(DATA),--data-dir $(DATA))
	$(BIN)/fedrep lab report

test-browser: setup browser ## The full browser suite
	$(BIN)/python -m pytest tests/browser

pictures: setup browser ## Play the demo and take the documents' pictures of the dashboard anew
	$(BIN)/python -m docs.tools.dashboard_picture

test-images: setup image-tools registry ## Build the container images, start them, and play a federation from them (root; Debian's buildah and mmdebstrap)
	FEDREP_TEST_IMAGES=1 $(BIN)/python -m pytest -s tests/images

image-tools:
	@command -v buildah >/dev/null 2>&1 && command -v mmdebstrap >/dev/null 2>&1 || { command -v apt-get >/dev/null 2>&1 && [ "$$(id -u)" = 0 ] && { \
	  echo "installing Debian's buildah and mmdebstrap"; \
	  apt-get update -qq >/dev/null 2>&1; apt-get install -y -qq --no-install-recommends buildah mmdebstrap >/dev/null 2>&1; }; } || true
	@command -v buildah >/dev/null 2>&1 && command -v mmdebstrap >/dev/null 2>&1 || { \
	  echo "Images are built by buildah on a base of mmdebstrap. Install both (Debian: apt-get install buildah mmdebstrap), and run this as root."; exit 1; }

# Taken out of Debian's package, which would start a registry on every address where it is installed.
registry: $(STAMPS)/installed
	@test -x $(BIN)/docker-registry || { command -v apt-get >/dev/null 2>&1 && command -v dpkg-deb >/dev/null 2>&1 && { \
	  echo "fetching Debian's docker-registry, to which the images are pushed on this machine"; folder=$$(mktemp -d); \
	  { [ "$$(id -u)" != 0 ] || apt-get update -qq; cd $$folder && apt-get download -qq docker-registry && dpkg-deb -x docker-registry_*.deb . \
	    && cp usr/bin/docker-registry $(CURDIR)/$(BIN)/docker-registry; } >/dev/null 2>&1; rm -rf $$folder; }; } || true
	@test -x $(BIN)/docker-registry || echo "docker-registry is missing, so nothing is pushed and pulled."

locks: $(STAMPS)/installed ## Lock the images' packages by version and hash (CHECK=1: only ask the index whether they hold)
	@test -x .bench/uv/bin/uv || { $(PYTHON) -m venv .bench/uv && PIP_CONSTRAINT= .bench/uv/bin/pip --disable-pip-version-check install --quiet uv==0.13.7; }
	PATH="$(CURDIR)/.bench/uv/bin:$$PATH" $(BIN)/python deploy/docker/lock.py $(if $(CHECK),--check)

base: ## Renew the digests of the base images, with docker or skopeo
	$(PYTHON) deploy/docker/base.py

chart: $(STAMPS)/installed ## Regenerate the Helm chart's README and schema from its comments and the settings classes
	$(BIN)/python deploy/helm/generate.py

policies: $(STAMPS)/installed ## Check chart and Dockerfile with checkov, in an environment of its own
	@test -x .bench/checkov/bin/checkov || { $(PYTHON) -m venv .bench/checkov && PIP_CONSTRAINT= .bench/checkov/bin/pip install --quiet checkov==3.3.30; }
	$(BIN)/python -m tests.deploy.policies .bench/checkov/bin/checkov

crds: ## Fetch the definitions of cert-manager, Prometheus operator and Gateway API, against which a test then checks the chart
	mkdir -p .bench/crds
	npm install --silent --no-audit --no-fund --prefix .bench/crds @kubernetes-models/cert-manager@4.4.4 @kubernetes-models/prometheus-operator@6.0.0 @kubernetes-models/gateway-api@2.0.0

foreign-clients: ## Fetch Node's grpc-js, with which the contract tests then play rounds
	mkdir -p .bench/grpc-js
	npm install --silent --no-audit --no-fund --prefix .bench/grpc-js @grpc/grpc-js@1.14.3 @grpc/proto-loader@0.8.0

fuzz: setup .bench/fuzz/atheris ## Fuzz every decoder, guided by coverage (SECONDS=75 each; UNTIL=60 minutes in all runs; KEEP=1 adds to the corpus)
	PYTHONPATH=.bench/fuzz $(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),75) $(if $(UNTIL),--until $(UNTIL)) $(if $(KEEP),--keep)

.bench/fuzz/atheris: $(STAMPS)/installed
	@PIP_CONSTRAINT= $(PIP) install --quiet --no-deps --upgrade --target .bench/fuzz atheris==3.0.0 && touch $@

load: setup ## 64 silos that train nothing play rounds; shows where the time goes
	$(BIN)/python -m benchmarks.load

soak: setup ## 2,000 rounds on end with 32 silos, 200 with 128: memory, handles and cost have to stay flat (SOAK="--rounds 500")
	@mkdir -p benchmarks/results
	$(BIN)/python -m benchmarks.soak --json benchmarks/results/soak.json $(SOAK)

chaos: setup ## Break a real federation in over 500 ways and check that nothing is lost, counted twice or revealed (CHAOS="--seed 7")
	$(BIN)/python -m tests.chaos --json benchmarks/results/chaos.json $(CHAOS)
	$(BIN)/python -m pytest tests/chaos/test_random_kills.py

release: setup ## Wheel, images, chart, contents and checksums into dist/ (DRY=1 publishes nothing; REGISTRY=... SOURCE=...)
	DRY=$(DRY) REGISTRY=$(REGISTRY) SOURCE=$(SOURCE) $(BIN)/python deploy/release.py

wheelhouse: $(STAMPS)/installed ## All wheels a silo needs, for machines without a network
	$(PIP) wheel --quiet --wheel-dir wheelhouse '.[client]'

clean: ## Remove the virtual environment and everything built
	rm -rf $(VENV) .bench wheelhouse build dist benchmarks/results .import_linter_cache *.egg-info dashboard/fedrep_dashboard/static dashboard/web/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis
