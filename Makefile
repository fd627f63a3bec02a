# make demo       the package in .venv, then a plan for the sample trace in demo/plan.json
# make test       the package, the linters and vLLM in .venv-test, then every check
# make test-core  the same without torch and vLLM; tests that need them are skipped
# make coverage   branch coverage of the tests, which has to be 95 % or more (half an hour)
# make docs       the documentation in site/, of the environment that make test-core makes
#
# Needs Python >= 3.11, gcc, g++ and make. What is done is not done again; pyproject.toml or the
# pinned versions changing installs anew.
#
# PYTHON=python3.12     the interpreter of a new environment
# TORCH_PIP_ARGS=...    where torch comes from, such as an --index-url that has CPU builds
# PYTEST_ARGS='-k dp'   what pytest is asked to run

PYTHON ?= python3
TORCH_PIP_ARGS ?=
PYTEST_ARGS ?=

DEMO_PLAN := demo/plan.json
DEMO_COMMAND := tune traces/sample.parquet --replicas 80 -o $(DEMO_PLAN)

TORCH := torch==2.13.0
VLLM_VERSION := 0.28.0
CONSTRAINTS := requirements/constraints-test.txt
BUILD_TOOLS := requirements/vllm-build.txt

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Twice quiet: errors only.
pip = $(@D)/bin/python -m pip install --quiet --quiet

.DELETE_ON_ERROR:
.PHONY: help demo docs test test-core coverage checks check-lint check-format check-types check-tests clean

help:
	@awk '!/^#/ { exit } { sub(/^# ?/, ""); print }' Makefile

demo: .venv/.core
	@mkdir -p $(dir $(DEMO_PLAN))
	.venv/bin/ladder-opt $(DEMO_COMMAND)
	@echo "The plan is in $(DEMO_PLAN)."

test: .venv-test/.package
	@$(MAKE) --no-print-directory --keep-going checks ENV=.venv-test
test-core: .venv-test-core/.package
	@$(MAKE) --no-print-directory --keep-going checks ENV=.venv-test-core

# All of them run, whichever fails; pytest comes last.
checks: check-lint check-format check-types check-tests
check-lint:
	$(ENV)/bin/ruff check .
check-format:
	$(ENV)/bin/ruff format --check .
check-types:
	$(ENV)/bin/mypy
check-tests:
	$(ENV)/bin/pytest $(PYTEST_ARGS)

# Lines of compiled loops are not seen, so the tests next to them run again with those as plain Python.
# Few examples of each property: one more seldom runs another line. Servers, whose engines are processes of
# vLLM's, and the browser, which runs the page's scripts, would take longer and show no line of ours more.
COVERAGE := .venv-test/bin/coverage
COVERED_TESTS := -m 'not serving and not browser'
LOOP_TESTS := tests/solve $(addprefix tests/occupancy/test_,replay.py scheduling.py streamed_replay.py timeline.py)
coverage: .venv-test/.package
	$(COVERAGE) erase
	$(COVERAGE) run -m pytest -q --hypothesis-profile=few $(COVERED_TESTS)
	NUMBA_DISABLE_JIT=1 $(COVERAGE) run -m pytest -q --hypothesis-profile=few $(LOOP_TESTS)
	$(COVERAGE) combine --quiet
	$(COVERAGE) report

docs: .venv-test-core/.package
	.venv-test-core/bin/python -m scripts.make_docs
	.venv-test-core/bin/mkdocs build

clean:
	rm -rf .venv .venv-test .venv-test-core demo site

# One stamp for each finished part of an environment; the next part waits for it.

.venv/.made .venv-test/.made .venv-test-core/.made:
	@scripts/check-machine.sh $(PYTHON)
	@echo "Making $(@D)"
	$(PYTHON) -m venv --clear $(@D)
	@touch $@

.venv/.core: .venv/.made pyproject.toml
	@echo "Installing the package in $(@D)"
	$(pip) --editable '.[report,frames]'
	@touch $@

.venv-test/.torch: .venv-test/.made $(CONSTRAINTS)
	@echo "Installing $(TORCH) in $(@D)"
	$(pip) --constraint $(CONSTRAINTS) $(TORCH_PIP_ARGS) $(TORCH)
	@touch $@

# vLLM's `empty` build: all of its Python, no device's kernels, no GPU packages. Its version would be
# 0.28.0+empty, which pip takes for another release than the one asked for; hence the override.
.venv-test/.vllm-$(VLLM_VERSION): .venv-test/.torch $(BUILD_TOOLS)
	@echo "Building vllm $(VLLM_VERSION) in $(@D) (a minute or two)"
	$(pip) --constraint $(CONSTRAINTS) --requirement $(BUILD_TOOLS)
	VLLM_VERSION_OVERRIDE=$(VLLM_VERSION) VLLM_TARGET_DEVICE=empty \
	  $(pip) --constraint $(CONSTRAINTS) --no-binary vllm --no-build-isolation vllm==$(VLLM_VERSION)
	@touch $@

.venv-test/.package: .venv-test/.vllm-$(VLLM_VERSION)
.venv-test-core/.package: .venv-test-core/.made
.venv-test/.package .venv-test-core/.package: pyproject.toml $(CONSTRAINTS)
	@echo "Installing the package with its tests and linters in $(@D)"
	$(pip) --constraint $(CONSTRAINTS) --editable '.[test,lint,docs]'
	@touch $@
