# `make train` and `make test` set everything up by themselves, on a machine with Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2

.PHONY: help warm train test test-all test-slow test-mutants test-faults test-docs docs docs-serve dist lint format bench clean lock

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "regimen needs Python 3.11 or newer; set PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@$(BIN)/python -m compileall -q src  # the first command does not wait for it
	@touch $(READY)

warm: $(READY) ## Compile what `regimen train cartpole` runs, so that the first training does not wait for XLA
	@folder=$$(mktemp -d) && $(BIN)/regimen train cartpole --quiet --no-track --log.replay false --out $$folder/run; rm -rf $$folder

train: $(READY) ## Train PPO on CartPole until it is solved, with a live display
	$(BIN)/regimen train cartpole

test: $(READY) ## Run the tests (about 10 minutes on 2 cores)
	@command -v chromium chromium-browser google-chrome > /dev/null || echo "no Chromium: the tests of the live page in a browser are skipped (Debian: apt-get install chromium)"
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not long"

test-all: $(READY) ## Run the longer tests, after those of `make test` (about 10 minutes on 2 cores)
	$(BIN)/python -m pytest -n $(WORKERS) -m "long and not slow"

test-mutants: $(READY) ## Put known bugs in, one at a time, and see that the tests notice (about an hour on 2 cores)
	$(BIN)/python tests/mutants/run.py --workers $(WORKERS)

test-faults: $(READY) ## Kill, fill the disk, corrupt and soak; a table of what was lost (hours on 2 cores)
	$(BIN)/python tests/faults/run.py $(GATES)

test-slow: $(READY) ## Run the learning curves over seeds and the long process tests
	$(BIN)/python -m pytest -m slow

test-docs: $(READY) ## Run every command that the documentation shows, with small budgets (an hour or more)
	$(BIN)/python -m pytest tests/test_docs.py tests/test_docs_commands.py tests/test_docs_site.py

docs: $(READY) ## Build the documentation into site/; a broken link fails
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d build/docs docs site
	@echo "open site/index.html"

docs-serve: docs ## Show the documentation on this machine, http://127.0.0.1:8000
	$(BIN)/python -m http.server 8000 --bind 127.0.0.1 --directory site

dist: $(READY) ## Build the wheel and the source archive into dist/, install the wheel elsewhere and train with it
	$(BIN)/python .ci/wheel.py --train

lint: $(READY) ## Check style, types and who imports whom
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/shellcheck --severity=warning deploy/*.sh .ci/run

format: $(READY) ## Fix what ruff can fix
	$(BIN)/ruff check --fix src tests benchmarks examples
	$(BIN)/ruff format src tests benchmarks examples

lock: ## Pin the versions that are installed now, with the hashes of their files
	$(BIN)/python .ci/lock.py

bench: $(READY) ## Measure training speed (against Stable-Baselines3 where it is installed)
	$(BIN)/python benchmarks/throughput.py

clean: ## Remove the environment and caches (runs/ stays)
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist site
