PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PROCESSES = $(shell $(PYTHON) -c 'import os; print(min(4, os.cpu_count() + 1))')

.PHONY: setup demo test test-all mutants lint docs release lowest clean

setup: $(READY)

# uv installs in a sixth of pip's time, from pip's index-url; where it fails, pip installs. For other
# settings of pip's, such as no-index, UV_OFFLINE=1 keeps uv out.
PIP = $(BIN)/python -m pip install --quiet --constraint constraints.txt
OURS = --editable '.[cluster,hdf5,clip]' --group
# pip knows groups from 25.1 on, and Python 3.11 brings an older one.
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

# A file is one process's; each computes on one thread, so that processes do not fight for cores.
# Of our modules, which hundreds of processes import, bytecode is kept, whatever the surroundings say.
# One process more than there are cores computes while others wait for what they have started.
TESTED = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest
SIDE_BY_SIDE = --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder
test: $(READY)
	$(TESTED) $(SIDE_BY_SIDE) -m 'not long and not chaos and not slow and not full'

# The rest as well. What kills processes has the machine to itself: it speaks of a sweep's faults,
# not of a neighbour's.
test-all: $(READY)
	$(TESTED) $(SIDE_BY_SIDE) -m 'not long and not chaos'
	$(TESTED) -m 'not long and chaos' tests/chaos

# Plants bugs one by one; docs/results/mutants.md tells where and what survived. NAMES: some only.
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
	mkdir $(RELEASE)/calsweep-*/*.dist-info/sboms
	$(BIN)/cyclonedx-py environment --short-PURLs --output-reproducible --pyproject pyproject.toml \
		--output-file "$$(echo $(RELEASE)/calsweep-*/*.dist-info/sboms)/calsweep.cdx.json" \
		$(RELEASE)/venv/bin/python
	$(BIN)/wheel pack --dest-dir dist $(RELEASE)/calsweep-*
	$(RELEASE)/venv/bin/python -m pip install --quiet --force-reinstall --no-deps dist/*.whl
	cd $(RELEASE) && venv/bin/calsweep --version && venv/bin/calsweep demo
	$(BIN)/python -m pytest tests/releases
	if command -v sigstore; then sigstore sign dist/*; fi

# The lowest versions that pyproject.toml allows, each with what it needs itself; TESTS: some only.
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
