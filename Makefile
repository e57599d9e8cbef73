PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PROCESSES = $(shell $(PYTHON) -c 'import os; print(min(4, os.cpu_count() + 1))')

.PHONY: setup demo test test-all mutants lint docs release lowest clean

setup: $(READY)

# uv needs a sixth of pip's time and gets the index-url of pip's configuration. If uv fails, pip installs.
# uv ignores pip's other settings, such as no-index; with UV_OFFLINE=1 it fails, so that pip installs.
PIP = $(BIN)/python -m pip install --quiet --constraint constraints.txt
OURS = --editable '.[cluster,hdf5,clip]' --group
# pip 25.1 is the first version with --group; Python 3.11 comes with an older one.
GROUP = $(PIP) --upgrade 'pip>=25.1' && $(PIP) --no-compile $(OURS)
$(READY): export UV_DEFAULT_INDEX = $(or $(PIP_INDEX_URL),$(shell \
	$(PYTHON) -m pip config get global.index-url 2>/dev/null))
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) uv && $(BIN)/uv pip install --python $(BIN)/python \
		--constraint constraints.txt $(OURS) dev || { $(GROUP) dev; }
	touch $(READY)

demo: $(READY)
	$(BIN)/calsweep demo

# All tests of a file run in one process. Each process computes on one thread, so that they do not fight
# for cores. There is one process more than cores (at most four), because some wait for subprocesses.
# Hundreds of processes import the packages, so their bytecode is kept even if PYTHONDONTWRITEBYTECODE
# is set.
TESTED = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest
SIDE_BY_SIDE = --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder
test: $(READY)
	$(TESTED) $(SIDE_BY_SIDE) -m 'not long and not chaos and not slow and not full'

# The whole suite except long tests. The chaos tests run last and alone, so that a failure is never caused
# by another test.
test-all: $(READY)
	$(TESTED) $(SIDE_BY_SIDE) -m 'not long and not chaos'
	$(TESTED) -m 'not long and chaos' tests/chaos

# Plants bugs one by one; docs/results/mutants.md has the modules and the bugs that no test found. NAMES
# selects bugs, for example NAMES='"orchestrator.search.choice*"'.
mutants: $(READY)
	$(GROUP) mutants
	PATH="$(CURDIR)/$(BIN):$$PATH" OMP_NUM_THREADS=1 $(BIN)/mutmut run --max-children 1 $(NAMES)
	$(BIN)/mutmut results

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/zensical build --clean --strict

docs: $(READY)
	$(BIN)/zensical build --clean --strict

# Builds wheel and sdist into dist/, installs the wheel into a clean environment, writes the SBOM of that
# environment into the wheel (PEP 770), runs the demo there, and resumes a storage of every earlier release.
# It signs both files if sigstore is installed. It publishes nothing.
RELEASE = build/release
release: $(READY)
	rm -rf dist $(RELEASE)
	$(GROUP) release
	$(BIN)/python -m build --outdir dist .
	$(PYTHON) -m venv $(RELEASE)/venv
	$(RELEASE)/venv/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	$(BIN)/wheel unpack --dest $(RELEASE) dist/*.whl
	mkdir "$$(echo $(RELEASE)/calsweep-*/*.dist-info)/sboms"
	$(BIN)/cyclonedx-py environment --short-PURLs --output-reproducible --pyproject pyproject.toml \
		--output-file "$$(echo $(RELEASE)/calsweep-*/*.dist-info/sboms)/calsweep.cdx.json" \
		$(RELEASE)/venv/bin/python
	$(BIN)/wheel pack --dest-dir dist $(RELEASE)/calsweep-*
	$(RELEASE)/venv/bin/python -m pip install --quiet --force-reinstall --no-deps dist/*.whl
	cd $(RELEASE) && venv/bin/calsweep --version && venv/bin/calsweep demo
	$(BIN)/python -m pytest tests/releases
	if command -v sigstore; then sigstore sign dist/*; fi

# Tests with the lowest versions that pyproject.toml allows. TESTS selects files or folders.
TESTS = tests
lowest:
	rm -rf build/lowest
	$(PYTHON) -m venv build/lowest
	build/lowest/bin/python -m pip install --quiet uv
	build/lowest/bin/uv pip install --quiet --python build/lowest/bin/python \
		--resolution lowest-direct $(OURS) dev
	PATH="$(CURDIR)/build/lowest/bin:$$PATH" OMP_NUM_THREADS=1 build/lowest/bin/python -m pytest \
		-m 'not long and not chaos and not slow' $(TESTS)

clean:
	rm -rf $(VENV) build dist site mutants *.egg-info
