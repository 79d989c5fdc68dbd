# The two commands: `make demo` and `make test`. `make` alone lists all of them.

.DEFAULT_GOAL := help
.PHONY: help setup setup-bed setup-test demo demo-stop test test-full lint unit docs molecule bench lock-controller clean
SHELL := /bin/sh
BIN := .venv/bin

# Each scenario has hosts of its own; `make molecule SCENARIOS=engine` runs one.
SCENARIOS ?= bed preflight limits model engine service life sandbox site

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS='	' read -r name text; do \
		printf '  make %-16s %s\n' "$$name" "$$text"; done

setup: ## the controller in .venv, with the collections; nothing global but missing apt packages
	@tools/setup.sh controller

setup-bed: ## the same, and what test hosts need
	@tools/setup.sh bed

setup-test: ## the same, and what the tests need
	@tools/setup.sh test

demo: setup-bed ## from nothing to an answer of a language model on a test host
	@$(BIN)/python tools/demo.py

demo-stop: ## remove the demo's host
	@$(BIN)/python tools/demo.py --stop

test: setup-test lint unit molecule ## everything that CI runs

test-full: export HOSTKIT_FULL = 1
test-full: test ## the same, with every death of tests/deaths/matrix.md (half an hour more)

lint: setup-test ## style and types
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/yamllint --strict .
	shellcheck $$(git ls-files '*.sh') .ci/run
	$(BIN)/ansible-lint --offline
	$(BIN)/python tools/docs.py --check

unit: setup-test ## the rules, without a host
	$(BIN)/pytest -q

molecule: setup-test ## every role on real systemd hosts
	@$(BIN)/python tools/scenarios.py $(SCENARIOS)

bench: setup-test ## figures, printed as ratios
	@set -e; for file in benchmarks/*.py; do $(BIN)/python "$$file"; done

docs: setup-test ## write the roles' variable tables anew
	$(BIN)/python tools/docs.py

lock-controller: setup-test ## pin the controller's requirements anew
	for name in requirements requirements-test; do $(BIN)/uv pip compile --quiet --universal \
		--python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
		--custom-compile-command "make lock-controller" --output-file $$name.txt $$name.in; done

clean: ## remove .venv, collections and caches of this checkout (test hosts first)
	@if [ -x $(BIN)/python ]; then $(BIN)/python tools/demo.py --stop; fi
	rm -rf .venv .cache collections reports
