# make demo: environment, demo corpus, curate, train, held-out accuracy, reports
# make test: environment, lint, the whole test suite

PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   ?= demo
STAMP  := $(VENV)/.installed

# Weights and data sets are never fetched.
export HF_HUB_OFFLINE = 1
export TOKENIZERS_PARALLELISM = false

.PHONY: env demo test lint format bench clean

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	command -v $(PYTHON) >/dev/null && $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: env
	$(BIN)/curate demo $(DEMO)
	$(BIN)/curate run $(DEMO)/pipeline.yaml
	$(BIN)/train --curriculum $(DEMO)/out/shards --output $(DEMO)/run
	$(BIN)/train evaluate $(DEMO)/run --data $(DEMO)/heldout.jsonl --databases $(DEMO)/databases
	@echo
	@echo "what was removed and why   $(DEMO)/out/report.html, $(DEMO)/out/rejected.parquet"
	@echo "the shards                 $(DEMO)/out/shards/ (README.md, curriculum.json)"
	@echo "the run                    $(DEMO)/run/ (metrics.jsonl, eval.jsonl, best/)"

test: lint
	$(BIN)/pytest -q -n 2 --dist loadfile

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: env
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

bench: env
	$(BIN)/python -m benchmarks.spider

clean:
	rm -rf $(VENV) $(DEMO)
