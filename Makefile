# The commands of this project, for people and for CI alike.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXAMPLES := .venv-examples
ROUNDS ?= 5

.PHONY: run test verify search examples lint type docs format clean

run: $(STAMP)  ## set up, train the paper's learner on the shipped tree, evaluate it, draw the figures
	$(BIN)/python train.py
	$(BIN)/python evaluate.py

test: $(STAMP)  ## set up, run the tests
	$(BIN)/python -m pytest --numprocesses auto

verify: $(STAMP)  ## does this machine compute the published numbers?
	$(BIN)/python -m wm_env.lm.verify

search: $(STAMP)  ## other random examples for the properties, until one fails or ROUNDS are through
	for round in $$(seq $(ROUNDS)); do $(BIN)/python -m pytest -m hypothesis --hypothesis-profile random || exit 1; done

# An environment of its own, with the newest versions of everything: Ray RLlib pins an older Gymnasium than the tests use.
examples:  ## run every example for a few steps, with all libraries that they need; minutes, and 7 GB in .venv-examples
	$(PYTHON) -m venv $(EXAMPLES)
	$(EXAMPLES)/bin/pip install --quiet --upgrade pip
	$(EXAMPLES)/bin/pip install --quiet --upgrade --editable ".[examples,track]" pytest hypothesis
	$(EXAMPLES)/bin/python -m pytest tests/examples tests/agents/common/test_tracking.py

lint: $(STAMP)  ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(STAMP)  ## types
	$(BIN)/mypy

docs: $(STAMP)  ## the documentation site, built strictly, in build/site
	$(BIN)/mkdocs build --strict --quiet

format: $(STAMP)  ## let ruff write the files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(STAMP)

clean:  ## remove the environment and all runs
	rm -rf $(VENV) $(EXAMPLES) runs build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
