# Everything a fresh machine with Python >= 3.11 needs is installed by these targets; they touch nothing outside
# this folder, except that `bench` installs nginx and wrk with apt when it is run as root.
PYTHON ?= python3
# Another Python has an environment of its own: `make test PYTHON=python3.13 VENV=.venv-313`.
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
# Images of containers often set it, and then each process that a test starts compiles its modules again.
unexport PYTHONDONTWRITEBYTECODE
# Most tests wait for processes to start and to end, so one worker more than there are cores keeps the cores busy:
# two cores need half the time. A file stays with one worker, since its tests share what they started; dear files begin
# first (tests/dear_files.py), and xdist has no order of its own.
TOGETHER := --dist loadfile --no-loadscope-reorder
WORKERS ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')

# For each of ten parsers, and for whole conversations: an hour.
SLUICE_FUZZ_SECONDS ?= 327

# What depends on the Python: TLS and sockets, event loops, processes, threads, files, and the command line.
SHORT := tests/http tests/runtime tests/downstream tests/listen tests/store tests/workers tests/app tests/audit tests/cli \
  tests/config tests/frames tests/e2e/test_clients.py tests/e2e/test_stdio_shared.py

.PHONY: demo test short under-load compat lint docs bench mutants fuzz fuzz-tool soak accept chaos fleet dist lock clean

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python >= 3.11 is needed (set PYTHON=...)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "python3-venv is missing: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

demo: $(VENV)/.ready  ## one endpoint in front of real servers, and what it does; ARGS=--once exits
	@$(BIN)/sluice demo $(ARGS)

test: $(VENV)/.ready lint  ## lint, then the whole suite, real peers included; ARGS=--quick: what starts no process
	$(if $(filter --quick,$(ARGS)),,$(BIN)/python tests/peers/install.py)
	$(BIN)/python -m pytest -n $(WORKERS) $(TOGETHER) $(ARGS)

short: $(VENV)/.ready  ## the part of the suite that depends on the Python
	$(BIN)/python tests/peers/install.py
	$(BIN)/python -m pytest -n $(WORKERS) $(TOGETHER) $(SHORT) $(ARGS)

under-load: $(VENV)/.ready  ## files that start processes, three times beside 8 busy loops; ARGS="--jobs 4"
	$(BIN)/python tests/peers/install.py
	$(BIN)/python tests/under_load.py $(ARGS)

compat: $(VENV)/.ready  ## what real servers define, direct and through Sluice; ARGS=--hosts, or parts of names
	$(BIN)/python tests/compat/run.py $(ARGS)

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(VENV)/.ready  ## the parts of docs/ that come from the code, and the site, in site/; a warning is an error
	$(BIN)/python tests/docs/docs_reference.py
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-docs
	$(BIN)/uv pip install --quiet --python .venv-docs --require-hashes -r docs/requirements.lock
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

bench: $(VENV)/.ready  ## CPU per call and latency against nginx, in one run; ARGS=--short, --table, --policy, --audit, --hostile, --peers
	$(BIN)/python tests/bench/run.py $(ARGS)

mutants: $(VENV)/.ready  ## how many mutants of a random sample the tests kill; ARGS="border --sample 200 --seed 2"
	$(BIN)/python tests/peers/install.py
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraints requirements.lock --group mutants
	$(BIN)/python tests/mutants.py $(ARGS)

fuzz: fuzz-tool  ## input that breaks a parser, looked for by coverage; ARGS="http1 sse --seconds 600", --short: two minutes
	$(BIN)/python tests/fuzz/fuzz_run.py $(ARGS)

fuzz-tool: $(VENV)/.ready
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraints requirements.lock --group fuzz

soak: fuzz-tool  ## what takes long: crashes under load, seven days of logins, a database that hangs, an hour of fuzzing, and eight of everything in one (SLUICE_SOAK_MINUTES=60)
	$(BIN)/python tests/peers/install.py
	SLUICE_CRASH_ROUNDS=200 SLUICE_LOGIN_DAYS=7 SLUICE_OUTAGE_SECONDS=30 SLUICE_FLEET_ROUNDS=100 \
	  SLUICE_FUZZ_SECONDS=$(SLUICE_FUZZ_SECONDS) $(BIN)/python -m pytest \
	  tests/audit/test_audit_crash.py tests/login/test_renewing.py tests/login/test_seven_days.py \
	  tests/e2e/test_fleet_outages.py tests/e2e/test_fleet_revoked.py \
	  tests/e2e/test_fleet_rounds.py tests/fuzz/test_conversations.py -rP $(ARGS)
	$(BIN)/python tests/fuzz/fuzz_run.py --seconds $(SLUICE_FUZZ_SECONDS)
	PYTHONPATH=tests $(BIN)/python tests/soak/run.py

accept: $(VENV)/.ready  ## whole first lists beside a load; ARGS="--starts 100 --jobs 2", --load, --delay; --console: the pages; --desktop; --fleet; --hooks; --logins; --packages; --replicas; --start
	PYTHONPATH=.:tests:tests/bench $(BIN)/python tests/accept/run.py $(ARGS)

chaos: $(VENV)/.ready  ## faults in real processes under load, one at a time, in 14 minutes; ARGS="slow disk-full", --list, --table
	PYTHONPATH=tests $(BIN)/python tests/chaos/run.py $(ARGS)

fleet: $(VENV)/.ready  ## three replicas behind nginx on PostgreSQL, to look at; Ctrl-C stops them
	PYTHONPATH=tests $(BIN)/python tests/fleet_stage.py

dist: $(VENV)/.ready  ## the sdist, the wheel and a bill of materials, in dist/, with their checksums
	rm -rf dist
	$(BIN)/python deploy/release.py dist

lock: $(VENV)/.ready  ## newest versions within the floors of pyproject.toml, with hashes and without addresses
	$(BIN)/uv pip compile pyproject.toml --extra otel --extra keyring --extra postgres --extra detector --group test --group lint --group release --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-header --no-annotate --upgrade -o requirements.lock
	$(BIN)/uv pip compile --group docs --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-header --no-annotate --upgrade -o docs/requirements.lock

clean:
	rm -rf .venv .venv-* .peers dist site .mypy_cache .ruff_cache .pytest_cache
