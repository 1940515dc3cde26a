# Everything a fresh clone needs: `make run` and `make test` set themselves up.
#
# One virtual environment, filled in layers (runtime, then dev, then bench), each from a lock file with hashes. A stamp
# beside each layer says when it was installed, so that a repeated call costs nothing and a changed lock costs one install.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# The tests start hundreds of processes. Without its byte code on disk, each of them would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
ARGS ?=
SEED ?=
MINUTES ?= 1
# How many files of acceptance tests run at a time: they wait more than they compute.
WORKERS ?= 3
# Every Python that the package is made for.
PYTHONS ?= $(shell sed -n 's/.*"Programming Language :: Python :: \(3\.[0-9]*\)".*/\1/p' pyproject.toml)

VENV := .venv
BIN := $(VENV)/bin
LOCKS := requirements
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check
SOURCES := $(wildcard src tests benchmarks examples reference)

# What the tests need from the system, as command=package.
SYSTEM_TOOLS ?= curl=curl strace=strace openssl=openssl ip=iproute2 nsenter=util-linux sysctl=procps chromium=chromium kubectl=kubernetes-client promtool=prometheus

# The servers that some tests talk to, as file=package: Debian keeps them out of PATH. Kafka is fetched with Maven instead
# (tests/services/maven.py). Where one cannot be had, its tests are skipped and say so, unless EVERBELL_REQUIRE_SERVICES=1.
SERVICES ?= /usr/lib/postgresql/*/bin/postgres=postgresql /usr/share/java/zookeeper.jar=libzookeeper-java \
	/usr/bin/java=default-jre-headless /usr/bin/mvn=maven

# What comes from npm: the checks of the operations page (types and accessibility), and pyright for the types of users'
# programs. Nothing of it is shipped.
PAGE_TOOLS := typescript@7.0.2 axe-core@4.14.0 pyright@1.1.414
NPM := .build/npm

# The tool that writes the lock files. It runs only for `make lock`, in an environment that is thrown away.
LOCK_TOOL := uv==0.13.7

# Installs Debian packages where that is possible, and says what to do where it is not. Usage: $(call apt_install,names)
define apt_install
if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	echo "installing $(1)"; \
	apt-get update -qq; \
	DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends $(1) >/dev/null; \
else \
	echo "Missing: $(1). Install it with your package manager, as root (on Debian: apt-get install $(1)), and repeat."; \
	exit 1; \
fi
endef

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

## Running

.PHONY: run
run: $(VENV)/.runtime ## Start a server; options go into ARGS, as in: make run ARGS="--listen 127.0.0.1:9000"
	@exec $(BIN)/everbell serve $(ARGS)

.PHONY: services
services: $(VENV)/.dev services-installed ## Start the servers that the tests use, print their URLs, run until interrupted
	@exec $(BIN)/python -m tests.services

.PHONY: bench
bench: $(VENV)/.bench ## Measure this machine; options go into ARGS
	@exec $(BIN)/python -m benchmarks $(ARGS)

## Checking

.PHONY: test
test: $(VENV)/.dev ## Run every check there is, go on after a failure, and sum up
	@# Two stages need these, at the same time: so they are there before.
	@$(MAKE) system services-installed page-tools || echo "going on; what needs them will fail"
	@exec $(BIN)/python -m tests.stages

.PHONY: lint
lint: $(VENV)/.dev ## Check style and formatting
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/ruff format --check $(SOURCES)

.PHONY: types
types: $(VENV)/.dev page-tools ## Check types, also those of the operations page, where npm is installed
	@$(BIN)/mypy $(SOURCES)
	@if [ -x $(NPM)/node_modules/.bin/tsc ]; then $(NPM)/node_modules/.bin/tsc --project tests/tsconfig.json; fi

.PHONY: unit
unit: $(VENV)/.dev page-tools ## Run the unit tests
	@$(BIN)/pytest tests/unit $(ARGS)

.PHONY: test-pythons
test-pythons: ## Run the unit tests on every supported Python that this machine has
	@failed=; missing=; for version in $(PYTHONS); do \
		found=; for python in python$$version "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$version.*/bin/python; do \
			if "$$python" -c 'import ensurepip, venv' 2>/dev/null; then found=$$python; break; fi; done; \
		if [ -z "$$found" ]; then missing+=" $$version"; continue; fi; \
		echo "== $$("$$found" --version) ($$found)"; \
		$(MAKE) unit VENV=.build/pythons/$$version PYTHON="$$found" || failed+=" $$version"; \
	done; \
	[ -z "$$missing" ] || echo "not found here, and not tested:$$missing"; \
	if [ -n "$$failed" ]; then echo "failed on:$$failed"; exit 1; fi

.PHONY: conformance
conformance: $(VENV)/.dev system services-installed ## Run one suite per port over every adapter
	@$(BIN)/pytest tests/conformance $(ARGS)

.PHONY: simulation
simulation: $(VENV)/.dev ## Run the whole system in one thread, from seeds, under faults
	@$(BIN)/pytest tests/simulation $(ARGS)

.PHONY: sim
sim: $(VENV)/.dev ## Simulate more seeds, random ones or from SEED on, for MINUTES of one node, of clusters and of faults each
	@seed="$(SEED)"; seed=$${seed:-$$((RANDOM * 32768 + RANDOM))}; echo "make sim SEED=$$seed MINUTES=$(MINUTES)"; \
	failed=0; for campaign in campaign cluster_campaign replica_campaign fault_campaign; do \
		$(BIN)/python -m tests.simulation.$$campaign --seed $$seed --minutes $(MINUTES) || failed=1; \
	done; exit $$failed

.PHONY: model
model: $(VENV)/.dev ## Explore all interleavings of small clusters: joins, deaths, pauses, lost leases, releases
	@exec $(BIN)/python -m tests.model $(ARGS)

.PHONY: fuzz
fuzz: $(VENV)/.dev $(VENV)/.security system services-installed ## Search for input that breaks a test or a decoder, from SEED or a random one, for MINUTES
	@exec $(BIN)/python -m tests.fuzz $(if $(SEED),--seed $(SEED)) --minutes $(MINUTES)

.PHONY: acceptance
acceptance: $(VENV)/.dev system services-installed page-tools ## Run real processes, and kill some of them
	@$(BIN)/pytest tests/acceptance --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

.PHONY: reference
reference: $(VENV)/.runtime ## Write the pages of the documentation that are made from the code
	@$(BIN)/python -m reference

.PHONY: docs
docs: $(VENV)/.docs reference ## Build the documentation as a site, in .build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --clean
	@echo "the documentation is in .build/site/index.html"

.PHONY: sbom
sbom: $(VENV)/.security ## Write the list of components of the container image as CycloneDX, into .build/sbom.json
	@mkdir -p .build
	@$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --output-file .build/sbom.json $(LOCKS)/image.lock
	@echo "the components are in .build/sbom.json"

.PHONY: fix
fix: $(VENV)/.dev ## Format the code and mend what can be mended mechanically
	@$(BIN)/ruff check --fix-only $(SOURCES)
	@$(BIN)/ruff format $(SOURCES)

## Setting up

.PHONY: venv
venv: $(VENV)/.dev ## Make the environment for development

.PHONY: system
system: ## Install the system tools that the tests need, where they are missing
	@missing=; for tool in $(SYSTEM_TOOLS); do command -v "$${tool%%=*}" >/dev/null || missing+="$${missing:+ }$${tool#*=}"; done; \
	if [ -n "$$missing" ]; then $(call apt_install,$$missing); fi

.PHONY: services-installed
services-installed: $(VENV)/.dev
	@missing=; for service in $(SERVICES); do \
		compgen -G "$${service%%=*}" >/dev/null || missing+="$${missing:+ }$${service#*=}"; done; \
	if [ -n "$$missing" ]; then ( $(call apt_install,$$missing) ) || [ "$${EVERBELL_REQUIRE_SERVICES:-}" != 1 ]; fi
	@$(BIN)/python -m tests.services.maven || [ "$${EVERBELL_REQUIRE_SERVICES:-}" != 1 ]

.PHONY: page-tools
page-tools: # Install what checks the operations page and the types of users' programs; where npm is missing, say what is not checked.
	@if [ "$$(cat $(NPM)/installed 2>/dev/null)" != "$(PAGE_TOOLS)" ]; then \
		mkdir -p $(NPM); \
		if command -v npm >/dev/null && npm install --silent --no-fund --no-audit --prefix $(NPM) $(PAGE_TOOLS); then \
			echo "$(PAGE_TOOLS)" > $(NPM)/installed; \
		else \
			echo "npm cannot install $(PAGE_TOOLS): types and accessibility of the page, and pyright, are not checked"; \
			[ "$${EVERBELL_REQUIRE_SERVICES:-}" != 1 ]; \
		fi; \
	fi

.PHONY: pictures
pictures: $(VENV)/.dev system ## Take the pictures of the operations page in docs/pictures, from a real server
	@$(BIN)/python -m tests.acceptance.pictures

.PHONY: lock
lock: ## Write the lock files again from pyproject.toml; ARGS=--upgrade takes the newest releases
	@tool=$$(mktemp -d); trap 'rm -rf "$$tool"' EXIT; \
	$(PYTHON) -m venv "$$tool"; "$$tool/bin/pip" install --quiet --disable-pip-version-check '$(LOCK_TOOL)'; \
	compile() { "$$tool/bin/uv" pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-header --no-annotate $(ARGS) "$$@"; }; \
	sed -n 's/^requires = \["\(.*\)"\]$$/\1/p' pyproject.toml | compile - --output-file $(LOCKS)/build.lock; \
	compile pyproject.toml --extra cassandra --extra kafka --extra postgres --extra zookeeper --output-file $(LOCKS)/runtime.lock; \
	compile pyproject.toml --extra dev --constraints $(LOCKS)/runtime.lock --output-file $(LOCKS)/dev.lock; \
	compile pyproject.toml --extra cassandra --extra kafka --extra otel --extra postgres --extra zookeeper \
		--constraints $(LOCKS)/dev.lock --output-file $(LOCKS)/image.lock; \
	compile pyproject.toml --extra docs --constraints $(LOCKS)/dev.lock --output-file $(LOCKS)/docs.lock; \
	compile pyproject.toml --extra security --constraints $(LOCKS)/dev.lock --output-file $(LOCKS)/security.lock; \
	compile pyproject.toml --extra bench --constraints $(LOCKS)/dev.lock --output-file $(LOCKS)/bench.lock

.PHONY: clean
clean: ## Remove whatever the other targets made; data of a server stays
	@rm -rf $(VENV) .build .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist src/*.egg-info
	@find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found: name a Python of 3.11 or newer, as in: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$$($(PYTHON) --version) is too old: name a Python of 3.11 or newer, as in: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { $(call apt_install,python3-venv); }
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.runtime: $(VENV)/.created $(LOCKS)/build.lock $(LOCKS)/runtime.lock pyproject.toml
	@echo "installing what everbell needs to run"
	@$(PIP_INSTALL) --require-hashes -r $(LOCKS)/build.lock -r $(LOCKS)/runtime.lock
	@$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime $(LOCKS)/dev.lock
	@echo "installing what the checks need"
	@$(PIP_INSTALL) --require-hashes -r $(LOCKS)/dev.lock
	@touch $@

$(VENV)/.docs: $(VENV)/.runtime $(LOCKS)/docs.lock
	@echo "installing what the documentation needs"
	@$(PIP_INSTALL) --require-hashes -r $(LOCKS)/docs.lock
	@touch $@

$(VENV)/.security: $(VENV)/.runtime $(LOCKS)/security.lock
	@echo "installing what fuzzing and the list of components need"
	@$(PIP_INSTALL) --require-hashes -r $(LOCKS)/security.lock
	@touch $@

$(VENV)/.bench: $(VENV)/.runtime $(LOCKS)/bench.lock
	@echo "installing what the benchmarks need"
	@$(PIP_INSTALL) --require-hashes -r $(LOCKS)/bench.lock
	@touch $@
