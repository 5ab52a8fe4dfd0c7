# make demo   set up, train on the embedded bank, show counts, metrics and a picture
# make test   set up, lint, type-check and run all tests
# make docs-check   set up, run every command of README.md on small stand-in data
# Others: lint, type, format, bench, clean. PYTHON chooses the interpreter for .venv.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
TESTS ?= tests
CODE := libra_gym agents experiments tests

.PHONY: demo test docs-check lint type format bench clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: $(STAMP)
	$(BIN)/libra demo --out demo-out

test: lint type
	$(BIN)/python -m pytest -n 2 $(TESTS)

docs-check: $(STAMP)
	$(BIN)/python -m experiments.docs_check README.md

lint: $(STAMP)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

type: $(STAMP)
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

# ROOT and WEIGHTS add the figures that need real photos: make bench ROOT=DIR WEIGHTS=FILE
bench: $(STAMP)
	$(BIN)/libra bench --out bench.json $(if $(ROOT),--root $(ROOT)) $(if $(WEIGHTS),--weights $(WEIGHTS))

clean:
	rm -rf .venv build dist *.egg-info demo-out bench.json .pytest_cache .mypy_cache .ruff_cache .hypothesis
