# Two commands on a fresh machine: `make demo` (the main job) and `make test`. Each makes .venv/ and
# installs all it needs; the stamp's name holds the hash of what was installed, so a second run starts at once.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT ?= out/demo
ENGINES ?= 2
PYTEST_ARGS ?=
WORKERS ?= 2
CODE := lorafsm adapters gpu_e2e tests

KEY := $(shell { pwd; cat pyproject.toml requirements/*.txt; } | sha256sum | cut -c1-16)
STAMP := $(VENV)/.installed-$(KEY)
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
export PIP_EXTRA_INDEX_URL

OLDER := 0.5.15.post1 0.5.17 0.5.21

.PHONY: help venv demo experiment test test-pure test-engines test-experiment test-original test-older test-long bench check check-long mutants nightly lint format types clean

help:  ## say what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 16

venv: $(STAMP)  ## make .venv and install everything (done by the others when needed)

# The three installs are one after another in one recipe: pip must never run twice on one environment.
$(STAMP): pyproject.toml $(wildcard requirements/*.txt)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lorafsm needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing into $(VENV), once, one to three minutes: 1/3 what the engine and the tools need"
	@$(PIP) install -r requirements/engine-deps.txt -r requirements/dev.txt
	@echo "2/3 the engine"
	@$(PIP) install --no-deps -r requirements/engine-nodeps.txt
	@$(PIP) install --no-deps -r requirements/tla.txt
	@echo "3/3 lorafsm"
	@$(PIP) install --no-build-isolation -e '.[cli,dev,journal,metrics,ray,sglang,torch]'
	@rm -f $(VENV)/.installed-*
	@touch $@

demo: $(STAMP)  ## the main job on real engines; writes out/demo/report.json and report.html
	$(BIN)/lorafsm demo --out $(OUT) --engines $(ENGINES)

experiment: $(STAMP)  ## the acceptance of RFC 7.1 to 7.3 on the cpu profile; writes out/experiment/report.html
	$(BIN)/lorafsm experiment --profile cpu --out out/experiment

test: test-pure test-engines test-experiment  ## what every change runs, real engines included

# A file's tests share what they compute (walks through states), so files are what workers share out.
test-pure: $(STAMP)  ## all tests that need no engine, on two workers
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not engines and not experiment and not original" $(PYTEST_ARGS)

test-engines: $(STAMP)  ## the tests on real SGLang engines, which share two of them
	$(BIN)/python -m pytest -m engines $(PYTEST_ARGS)

test-experiment: $(STAMP)  ## the experiment of RFC 7 with a row of three publications
	$(BIN)/python -m pytest -m experiment $(PYTEST_ARGS)

test-original: $(STAMP)  ## our cache beside SGLang's own: the same victims, no fewer hits
	$(BIN)/python -m pytest -m original $(PYTEST_ARGS)

# The wheels are only unzipped: what they need of other packages, the installed SGLang has brought.
test-older: $(STAMP)  ## the guard in older versions of SGLang, fetched without dependencies into out/older
	@for v in $(OLDER); do test -d out/older/$$v || { \
	  $(PIP) download --no-deps -d out/older sglang==$$v && rm -rf out/older/part && \
	  $(BIN)/python -m zipfile -e out/older/sglang-$$v-*.whl out/older/part && mv out/older/part out/older/$$v; }; done
	LORAFSM_OLDER_SGLANG=out/older $(BIN)/python -m pytest tests/adapters/test_guard_tokenizer.py $(PYTEST_ARGS)

test-long: $(STAMP)  ## on real engines: 2,000 requests over 20 publications, kill -9 in every phase, an offline engine, a demo
	LORAFSM_STRESS=2000,20 LORAFSM_KILLS=1 LORAFSM_OFFLINE=1 LORAFSM_RUST=1 $(BIN)/python -m pytest -m engines \
	  $(addprefix tests/engines/guard/,test_deployment.py test_ways_in.py test_rust_server.py) $(PYTEST_ARGS)
	LORAFSM_DEMOS=1 $(BIN)/python -m pytest -m engines tests/e2e/test_demo.py -k artifact_store $(PYTEST_ARGS)

bench: $(STAMP)  ## what steps, sessions, searches and the cache cost; writes out/bench/results.json
	$(BIN)/python -m tests.benchmarks

check: $(STAMP)  ## every formal model of the ci tier, with TLC (needs Java); a tenth of the core's mutants
	$(BIN)/python -m lorafsm_tla check
	$(BIN)/python -m tests.mutants core --seeded-tenth

check-long: $(STAMP)  ## the larger models and simulation; the better part of an hour
	$(BIN)/python -m lorafsm_tla check --tier long

mutants: $(STAMP)  ## damage core and specification, one guard or effect at a time; somebody must see it (an hour)
	$(BIN)/python -m tests.mutants

nightly: check-long mutants bench test-long test-older test-original  ## what is too long for every change

lint: $(STAMP)  ## ruff
	$(BIN)/python -m ruff check $(CODE)

format: $(STAMP)  ## ruff's formatter
	$(BIN)/python -m ruff format $(CODE)

types: $(STAMP)  ## strict mypy over lorafsm, adapters, gpu_e2e
	$(BIN)/python -m mypy

clean:  ## remove the environment, results and caches
	rm -rf $(VENV) out dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
