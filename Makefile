# Everything sets itself up: `make run` and `make test` need only Python 3.11+ and a package registry.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
READY := $(VENV)/.ready
WHOLE := $(VENV)/.whole

.PHONY: run test quick soak docs regenerate lint setup clean
run: $(READY)
	$(BIN)/mspcaps quickstart

test: $(WHOLE) lint
	$(BIN)/python -m pytest -n 2 -m "not soak"

# The tests that take under a minute in all.
quick: $(WHOLE)
	$(BIN)/python -m pytest -n 2 -m "not slow and not gpu and not soak"

# The long ones that the others leave out.
soak: $(WHOLE)
	$(BIN)/python -m pytest -n 2 -m soak

# Everything committed that is generated, but for measurements and screenshots: pages and plots from results/, blocks of
# README.md and docs/, tables of fields, the text of --help, drawings. Nothing else writes them.
regenerate: $(WHOLE)
	$(BIN)/python -m tools.regenerate

docs: $(WHOLE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The pages:  $(CURDIR)/site/index.html"

lint: $(WHOLE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: $(WHOLE)

# What a user needs. torch first and pinned: a range would let the resolver take a larger build than the one that is tested.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	$(INSTALL) -e .
	touch $(READY)

# And everything else: all the extras, the tools for development.
$(WHOLE): $(READY)
	$(INSTALL) -e '.[dev,log,onnx,hub,app,heic,sklearn,ray,docs]'
	touch $(WHOLE)

clean:
	rm -rf $(VENV) build dist site
