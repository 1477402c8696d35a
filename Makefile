.DEFAULT_GOAL := help
SHELL := bash
VENV ?= .venv
# numpy < 2, which PyTriton needs, has no wheels for Python 3.13; ONNX Runtime has none for 3.10.
PYTHON ?= $(shell for p in python3 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null \
	&& echo $$p && break; done)
ENV = PATH="$(abspath $(VENV))/bin:$$PATH"
# Quiet, it hides what is wrong with params.yaml; so once more, but not after Ctrl-C.
REPRO = { trap 'exit 130' INT; \
	$(ENV) dvc repro --quiet --keep-going || $(ENV) dvc repro --keep-going; }

.PHONY: help run test test-containers check fix models zoo bench browser

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 17

run: models  ## Build the environment, prepare the models, start the server and the page
	@export $(ENV) STYLESERVE_URL=$${STYLESERVE_URL:-http://localhost:$${STYLESERVE_HTTP_PORT:-8000}}; \
	python server.py & python client.py & \
	trap 'asked=yes; kill $$(jobs -p) 2>/dev/null' INT TERM; \
	wait -n; code=$$?; kill $$(jobs -p) 2>/dev/null; wait; test "$$asked" || exit $$code

models: $(VENV)/models  ## Convert the raw models with DVC
	$(REPRO)

zoo: $(VENV)/models  ## Fetch and convert pointilism and udnie of the ONNX model zoo (internet)
	cd models/zoo && $(ENV) dvc update pointilism-9.onnx.dvc udnie-9.onnx.dvc
	cd models/zoo && $(REPRO)

test: check models browser  ## Install everything, lint, check the types, run all tests
	$(ENV) pytest --ignore tests/containers

check: $(VENV)/dev  ## Lint and check the types
	$(ENV) ruff check .
	$(ENV) ruff format --check .
	$(ENV) mypy .

fix: $(VENV)/dev  ## Format, and mend what the linter can
	$(ENV) ruff check --fix .
	$(ENV) ruff format .

browser:
	@test -n "$$CHROMIUM" || command -v chromium >/dev/null \
	|| { test $$(id -u) = 0 && apt-get update -qq && apt-get install -yqq --no-install-recommends \
	chromium fonts-dejavu-core >/dev/null; } || echo "no Chromium, so the tests of the page skip"

bench: $(VENV)/dev models  ## Measure speed and memory
	$(ENV) PYTHONPATH=. python benchmarks/models.py models/converted/*.onnx
	$(ENV) PYTHONPATH=. python benchmarks/overhead.py
	$(ENV) PYTHONPATH=. python benchmarks/pipelines.py
	$(ENV) PYTHONPATH=. python benchmarks/compare.py

$(VENV)/python: 
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 is needed, python3 is \
	$$(python3 -V 2>&1); install one, or name it: make PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/models: $(VENV)/python requirements.txt requirements-base.txt requirements-server.txt \
		requirements-page.txt requirements-models.txt
	$(ENV) pip install -q -r requirements.txt -r requirements-models.txt
	touch $@

$(VENV)/dev: $(VENV)/models requirements-dev.txt
	$(ENV) pip install -q -r requirements-dev.txt
	touch $@

test-containers: $(VENV)/dev  ## Build and try the containers (needs a Docker Engine)
	$(ENV) pytest --timeout 900 tests/containers
