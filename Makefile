# Everything a person needs, on a machine with python3 and make. `make help` lists it.

PYTHON ?= python3.11
# Where python3.11 goes by another name, any interpreter that pyproject.toml accepts will do.
ifeq ($(shell command -v $(PYTHON) 2>/dev/null),)
PYTHON := python3
endif
TOOLS := .uv
UV := $(TOOLS)/bin/uv
UV_VERSION := 0.13.9
VENV := .venv
RUN := $(VENV)/bin/python
# cpu or cuda: which set of SGLang's requirements is installed.
ENGINE ?= $(shell command -v nvidia-smi >/dev/null 2>&1 && echo cuda || echo cpu)
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test test-fast test-engine soak lint format bench doctor docs promtool profile clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(UV):
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

$(VENV)/.ready-$(ENGINE): pyproject.toml uv.lock | $(UV)
	@# Compiled once here: SGLang's imports take half a minute per process otherwise, where
	@# Python may not write its bytecode itself.
	$(UV) sync --frozen --compile-bytecode --extra engine-$(ENGINE) --extra demo
	@touch $@

setup: $(VENV)/.ready-$(ENGINE) ## install everything into .venv (a few minutes, 7 GB)

demo: setup ## serve a real model under TWP, send a burst of GSM8K questions, show what happens
	$(RUN) -m twp_sglang.demo $(ARGS)

serve: setup ## serve the demo model under TWP on port 30000 (ARGS="--twp-... or SGLang flags")
	$(RUN) -m twp_sglang.launch_server --model-path "$$($(RUN) -m twp_sglang.demo_model)" $(ARGS)

test: setup ## lint, types, unit tests, engine tests on the CPU
	$(MAKE) lint
	$(MAKE) test-fast
	$(MAKE) test-engine

promtool: ## get Prometheus' rule checker, for the tests of dashboards/ (Debian)
	bash tools/get_promtool.sh

test-fast: setup promtool ## tests without an engine
	$(RUN) -m pytest -q -n auto --dist loadfile -m "not engine and not soak and not gpu" $(ARGS)

test-engine: setup ## tests that start the real engine on the CPU
	$(RUN) -m pytest -q -m "engine and not soak" $(ARGS)

soak: setup ## half an hour of mixed load, faults and changes on the CPU engine (SOAK_MINUTES=30)
	$(RUN) -m pytest -q -s -m soak $(ARGS)

lint: setup ## ruff and mypy
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy

format: setup ## let ruff rewrite what it can
	$(RUN) -m ruff format .
	$(RUN) -m ruff check --fix .

bench: setup ## load generator against a running server (ARGS="run --url ..." or "compare A B")
	$(RUN) -m twp_sglang.bench $(ARGS)

profile: setup ## time the steps of a decoder (FlashInfer on a GPU), fit the step model (docs/gpu.md)
	@mkdir -p out
	$(RUN) -m twp_sglang.profile_step $(if $(filter cuda,$(ENGINE)),--model llama-3.2-3b --backend flashinfer,--model tiny --backend sdpa) --out out/step.json $(ARGS)

docs: setup ## build the documentation site into out/site
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

doctor: setup ## say what this machine has, what fits, and what does not
	$(RUN) -m twp_sglang.doctor $(ARGS)

clean: ## remove what the targets above made here
	rm -rf $(VENV) $(TOOLS) .tools out .pytest_cache .mypy_cache .ruff_cache .hypothesis
