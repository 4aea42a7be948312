PYTHON ?= python3
JOBS ?= 2

PIP_INSTALL = -m pip install --quiet --disable-pip-version-check
SETTINGS = setup.cfg pyproject.toml
VENV = .venv
OLDEST = .venv-oldest
CLIENTS = .venv-clients
DOCS = .venv-docs
# Test workers fill the cores; BLAS threads on top of them would only compete.
ONE_THREAD = OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-slow stress test-oldest test-clients bench docs lint format dist clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/demo.stamp ## search images under a metric learned from clicks, for 30 s
	@$(VENV)/bin/python examples/demo.py

test: lint ## lint, then run the tests and doctests, for 4 minutes
	@echo "tests and doctests, $(JOBS) at a time: 4 minutes on two cores"
	@$(ONE_THREAD) $(VENV)/bin/python -m pytest -q -n $(JOBS)

test-slow: $(VENV)/test.stamp ## run the tests that take seconds each, for 8 minutes
	$(ONE_THREAD) $(VENV)/bin/python -m pytest -q -n $(JOBS) -m "slow and not stress"

stress: $(VENV)/test.stamp ## run the tests that take minutes each, for 20 minutes
	$(ONE_THREAD) $(VENV)/bin/python -m pytest -q -n $(JOBS) -m stress

test-oldest: $(OLDEST)/test.stamp ## run the tests on the oldest dependencies
	$(ONE_THREAD) $(OLDEST)/bin/python -m pytest -q -n $(JOBS) --ignore=tests/dask

test-clients: $(CLIENTS)/test.stamp ## run the tests of libraries that take an index
	$(ONE_THREAD) $(CLIENTS)/bin/python -m pytest -q -rs tests/clients tests/test_guides.py

bench: $(VENV)/bench.stamp ## measure against peers, for minutes; results in benchmarks/results
	$(VENV)/bin/python -m benchmarks

.PHONY: screenshots
screenshots: docs ## check all pages in Chromium; pictures in docs/_build/screenshots
	$(DOCS)/bin/python $(PIP_INSTALL) selenium
	$(DOCS)/bin/python docs/screenshots.py

docs: $(DOCS)/docs.stamp ## build the documentation into docs/_build/html
	@rm -rf docs/generated docs/auto_examples docs/_build/html
	$(DOCS)/bin/python -m sphinx -b html -q -W --keep-going \
		-d docs/_build/doctrees docs docs/_build/html
	@echo "documentation: docs/_build/html/index.html"

lint: $(VENV)/test.stamp ## check style, formatting and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(VENV)/test.stamp ## format the code and apply the safe fixes
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

dist: $(VENV)/dist.stamp ## build sdist and wheel, install and test them
	rm -rf build dist *.egg-info
	$(VENV)/bin/python -m build --quiet
	$(VENV)/bin/python -m twine check --strict dist/*
	$(PYTHON) -m venv build/venv
	build/venv/bin/python $(PIP_INSTALL) "$$(echo dist/*.whl)[test]"
	cd build && venv/bin/python -c 'import skmahal; skmahal.show_versions()'
	mkdir build/sdist && tar -xzf dist/*.tar.gz -C build/sdist --strip-components 1
	cd build/sdist && $(ONE_THREAD) ../venv/bin/python -m pytest -q -n $(JOBS) \
		tests/test_package.py tests/test_house.py tests/test_callbacks.py

clean: ## remove environments, caches and built files
	rm -rf $(VENV) $(OLDEST) $(CLIENTS) $(DOCS) build dist *.egg-info \
		docs/_build docs/generated docs/auto_examples docs/sg_execution_times.rst \
		.pytest_cache .ruff_cache .mypy_cache .hypothesis
	find skmahal tests examples benchmarks docs -name __pycache__ \
		-prune -exec rm -rf {} +

# A stamp is newer than the settings its environment was installed from.

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "skmahal needs Python 3.11 or later; set PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: $(SETTINGS) | $(VENV)/bin/python
	@echo "installing skmahal, numba and matplotlib into $(VENV), once: a minute or so"
	@$(VENV)/bin/python $(PIP_INSTALL) -e '.[fast,plot]'
	@touch $@

$(VENV)/test.stamp: $(SETTINGS) | $(VENV)/bin/python
	$(VENV)/bin/python $(PIP_INSTALL) -e '.[fast,metric-learn,test]'
	@touch $@

$(VENV)/dist.stamp: $(SETTINGS) | $(VENV)/bin/python
	$(VENV)/bin/python $(PIP_INSTALL) 'build>=1.2' 'twine>=6.1'
	@touch $@

$(VENV)/bench.stamp: $(SETTINGS) | $(VENV)/bin/python
	$(VENV)/bin/python $(PIP_INSTALL) -e '.[fast,bench]'
	@touch $@

# The oldest NumPy and SciPy have wheels for Python 3.11 and 3.12 only. A name on
# the path may be a shim that fails, so each candidate is run.
$(OLDEST)/bin/python:
	@for python in python3.11 python3.12 $(PYTHON); do \
		if $$python --version >/dev/null 2>&1 && $$python -c \
			'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))'; \
		then echo "$$python -m venv $(OLDEST)"; \
			exec $$python -m venv $(OLDEST); fi; \
	done; \
	echo "test-oldest needs Python 3.11 or 3.12; set PYTHON=..." >&2; exit 1

# The oldest versions are the lower bounds that setup.cfg states.
$(OLDEST)/test.stamp: $(SETTINGS) | $(OLDEST)/bin/python
	@sed -n '/^install_requires/,/^$$/s/^ *\(.*\)>=/\1==/p' setup.cfg \
		> $(OLDEST)/constraints.txt
	@cat $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python $(PIP_INSTALL) -c $(OLDEST)/constraints.txt \
		-e '.[metric-learn,test]'
	@touch $@

$(CLIENTS)/bin/python:
	$(PYTHON) -m venv $(CLIENTS)

$(CLIENTS)/test.stamp: $(SETTINGS) | $(CLIENTS)/bin/python
	$(CLIENTS)/bin/python $(PIP_INSTALL) -e '.[fast,clients,test]'
	@touch $@

$(DOCS)/bin/python:
	$(PYTHON) -m venv $(DOCS)

$(DOCS)/docs.stamp: $(SETTINGS) | $(DOCS)/bin/python
	$(DOCS)/bin/python $(PIP_INSTALL) -e '.[docs,fast,plot,metric-learn]'
	@touch $@
