# Each target sets up its own virtual environment when there is none.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo docs test test-slow campaign lint format clean

demo: $(READY)
	$(BIN)/crisp demo --out demo --existing replace

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow'

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

# An hour of damaged files and killed runs; the records go to campaign/. SEED=7 makes other cases.
SEED ?= 1
campaign: $(READY)
	mkdir -p campaign
	$(BIN)/python -m campaigns.fuzz --cases 1000000 --minutes 30 --seed $(SEED) --jobs 2 --out campaign/fuzz
	$(BIN)/python -m campaigns.kill --rounds 1000000 --minutes 30 --seed $(SEED) --out campaign/kill

# Offline, and a warning is an error.
docs: $(VENV)/.docs-ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "python3 -m http.server -d site shows it"

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks tools campaigns
	$(BIN)/ruff format --check src tests benchmarks tools campaigns
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(READY)
	$(BIN)/ruff check --fix src tests benchmarks tools campaigns
	$(BIN)/ruff format src tests benchmarks tools campaigns

# constraints.txt goes into every install line: the versions that were tested. Its torch is a CPU build where the
# package index has one.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt -e '.[plots,view,track,peers,ray,export,dev]'
	touch $(READY)

$(VENV)/.docs-ready: $(READY)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
