# A machine needs python3 (tested: 3.11, and the unit tests on 3.13; packages exist up to 3.14) and make; everything else goes into
# .venv, pinned and checked by hash. `make` alone lists the targets.

# Another interpreter: make PYTHON=python3.12
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# uv does not read pip's settings: index, links and certificates are handed over. Tests that install packages get them too.
PIP_INDEX_URL ?= $(shell $(PYTHON) -m pip config get global.index-url 2>/dev/null)
UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
UV_FIND_LINKS ?= $(firstword $(wildcard $(PIP_FIND_LINKS)))
SSL_CERT_FILE ?= $(PIP_CERT)
UV_ENV = $(if $(UV_DEFAULT_INDEX),UV_DEFAULT_INDEX="$(UV_DEFAULT_INDEX)") \
	$(if $(UV_FIND_LINKS),UV_FIND_LINKS="$(UV_FIND_LINKS)") $(if $(SSL_CERT_FILE),SSL_CERT_FILE="$(SSL_CERT_FILE)")
UV_PIP = $(UV_ENV) $(BIN)/uv pip
EXTRAS := --extra cluster --extra zookeeper --extra oidc --extra java
COMPILE = $(UV_PIP) compile --quiet --universal --python-version 3.11 --fork-strategy fewest --generate-hashes \
	--no-emit-index-url --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade)

PYTEST = $(UV_ENV) $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

# What the simulation runs, and where its coverage is stored.
CONTROL_PLANE := dispatcher jobmaster resourcemanager taskmanager ha model
SIMULATED := .simulation-coverage

.DEFAULT_GOAL := help
.PHONY: help venv demo dashboard test check format bench soak coverage growth chaos mutants docs site dist lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(READY) ## set up .venv (every other target does it when needed)
	@:

demo: $(READY) ## run an example job on an embedded cluster
	@$(BIN)/flintlock run examples/revenue.py:job --local

dashboard: $(READY) ## check and build the dashboard, which JobManagers then serve at /
	@$(UV_ENV) $(BIN)/python -m dashboard.build --check

test: $(READY) ## every test in two processes; ARGS='-k name -n 0' for pytest
	@$(PYTEST) $(ARGS)

check: $(READY) ## lint, format, types, import contracts, known vulnerabilities of the pinned packages
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { echo "not formatted; run make format"; exit 1; }
	@$(BIN)/basedpyright
	@$(BIN)/lint-imports --no-logo --no-cache
	@$(BIN)/python -m tests.dependency_audit

format: $(READY) ## rewrite the code by the formatter and the fixable rules
	@$(BIN)/ruff check --fix --quiet; $(BIN)/ruff format --quiet

bench: $(READY) ## measure the figures, write bench/results.json; ONLY=name for one, ONLY=--publish for the page
	@$(BIN)/python -m bench $(ONLY)

soak: $(READY) ## simulate clusters with random seeds for SECONDS=60
	@$(BIN)/python -m flintlock.testing.soak --seconds $(or $(SECONDS),60)

coverage: $(READY) ## branch coverage by unit and contract tests, and of the control plane by the simulation alone (SEEDS=0:200)
	@$(PYTEST) --cov --cov-report= tests/unit tests/contract
	@echo "unit and contract tests: $$($(BIN)/coverage report --format=total) %"
	@PYTHONHASHSEED=0 $(BIN)/coverage run --data-file=$(SIMULATED) -m flintlock.testing.soak --seeds $(or $(SEEDS),0:200)
	@for package in $(CONTROL_PLANE); do echo "$$package: $$($(BIN)/coverage report --data-file=$(SIMULATED) \
		--format=total --include="*/flintlock/$$package/*") %"; done

growth: $(READY) ## run JOBS=2000 jobs in a simulated cluster; nothing may grow after the first tenth
	@$(BIN)/python -m flintlock.testing.growth --jobs $(or $(JOBS),2000)

chaos: $(READY) ## a cluster on real ZooKeeper under 50 faults (ARGS='--seed 7 --faults 20'), then KILLS=100 under streaming jobs
	@$(BIN)/python -m tests.chaos $(ARGS)
	@$(BIN)/python -m tests.chaos.kills --kills $(or $(KILLS),100)

mutants: $(READY) ## plant each known bug in a copy of the source: the simulation, or the tests that it names, must find it; ARGS='--simulate --first 40' measures the simulation alone
	@$(BIN)/python -m tests.mutants $(ARGS)

docs: $(READY) ## write the generated reference pages
	@$(BIN)/python -m docs

site: $(READY) ## build the documentation as a site into site/; open site/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo site/index.html

dist: $(READY) ## build the sdist, and the wheel from it, into dist/
	@$(BIN)/uv build --quiet --no-build-isolation --offline --python $(BIN)/python --out-dir dist
	@ls dist/*

lock: $(READY) ## pin the dependencies again; UPGRADE=1 takes newer versions
	@$(COMPILE) pyproject.toml $(EXTRAS) --group dev --output-file requirements/dev.txt
	@$(COMPILE) pyproject.toml $(EXTRAS) --constraint requirements/dev.txt --output-file requirements/runtime.txt
	@$(COMPILE) pyproject.toml --constraint requirements/dev.txt --output-file requirements/client.txt
	@$(COMPILE) --group build --constraint requirements/dev.txt --output-file requirements/build.txt
	@$(COMPILE) --group jupyter --constraint requirements/dev.txt --output-file requirements/jupyter.txt
	@$(COMPILE) --group hadolint --constraint requirements/dev.txt --output-file requirements/hadolint.txt
	@$(COMPILE) --group moto --output-file requirements/moto.txt

clean: ## remove what was generated, .venv included
	@rm -rf .venv .coverage .simulation-coverage .hypothesis .pytest_cache .ruff_cache build dist site dashboard/node_modules \
		src/flintlock/rest/dashboard/built
	@find src tests bench examples docs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The stamp is younger than what it was made from, so a second run finds nothing to do.
$(READY): pyproject.toml requirements/build.txt requirements/dev.txt
	@$(PYTHON) -c 'import sys; (3, 11) <= sys.version_info < (3, 15) or sys.exit("Flintlock and its pinned dependencies need Python 3.11 to 3.14; $(PYTHON) is %s. Name another one: make PYTHON=python3.12" % sys.version.split()[0])'
	@echo "Setting up .venv (the first time it downloads about 700 MB, most of it Spark)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/build.txt
	@# What comes as source (PySpark) is built with the pinned tools of this environment, not with whatever is newest.
	@$(UV_PIP) sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes --no-build-isolation requirements/dev.txt
	@$(UV_PIP) install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q src
	@touch $@
