# The only commands a newcomer needs. Each sets up what it needs, in .venv.
PYTHON ?= python3.11
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup run demo test test-crash check format bench lock clean
setup: .venv/.done

.venv/.done: requirements-dev.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv || python3 -m venv .venv
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

run: setup  ## the gateway on http://127.0.0.1:8080 (on the simulated provider if PALIMPSEST_UPSTREAM is not set)
	$(BIN)/palimpsest serve

demo: setup  ## the main job, with no key and no network
	$(BIN)/palimpsest demo

test: setup  ## all tests
	$(BIN)/python -m pytest

test-crash: setup  ## 200 kills instead of 20
	PALIMPSEST_TEST_KILLS=200 $(BIN)/python -m pytest tests/e2e/test_crash.py --timeout 3600

check: setup  ## lint, types, architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_architecture.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only .

bench: setup  ## what the gateway costs, beside a bare pass-through, in one run
	$(BIN)/python -m tests.bench

lock:  ## both lock files anew, hashes without addresses
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" -o requirements.lock pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --extra dev -o requirements-dev.lock pyproject.toml

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
