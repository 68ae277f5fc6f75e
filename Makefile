# Everything sets itself up: `make run` and `make test` need only Python 3.11+ and a package registry.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test docs lint setup clean
run: $(READY)
	$(BIN)/mspcaps quickstart

test: $(READY) lint
	$(BIN)/python -m pytest -n 2

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The pages:  $(CURDIR)/site/index.html"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: $(READY)

# torch first and pinned: a range would let the resolver take a larger build than the one that is tested.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,log,onnx,hub,app,docs]'
	touch $(READY)

clean:
	rm -rf $(VENV) build dist site
