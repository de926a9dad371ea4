# The manual. `make` alone lists what there is; every target sets up what it needs by itself.
#
#   make demo     the main job on real data: 336,776 flights through the brokers, all brokers killed, everything read back
#   make test     everything CI runs: lint, types, architecture, unit, property, integration and system tests
#
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SEEDS ?= 200
MINUTES ?= 10
JOBS ?= 2
# As many as cores: `make test` runs three other targets beside.
WORKERS ?= 2
ARGS ?=
# Notes the CPU seconds of a target, for the table at the end of `make test`.
MEASURED = $(BIN)/python -m tools.lanes run $@
# Where CI is set, a program that tests need and that cannot be installed is a failure; elsewhere those tests skip, and say so.
IF_POSSIBLE := $(if $(CI),,--if-possible)

# Where it is set (many a container image does), every process compiles all that it imports, and tests and demos start hundreds of them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml constraints-hashes.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Penstock needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Say: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) ..."
	@sed -n '/^uv==/,/[^\\]$$/p' constraints-hashes.txt > $(VENV)/uv.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/uv.txt
	@# From a registry without caching headers, each install stores another copy of pyspark (1.4 GB).
	@$(BIN)/uv cache prune --quiet
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints-hashes.txt -e '.[dev]'
	@touch $@

.PHONY: venv
venv: $(STAMP) ## a virtual environment with the pinned versions of constraints.txt

.PHONY: jre
jre: ## Java 17 or newer, which Spark alone needs: found, or installed by the package manager
	@tools/ensure-java.sh

.PHONY: jdk
jdk: ## a JDK 17 and Maven, which the tests with Kafka's Java programs need: found, or installed by the package manager
	@tools/ensure-java.sh --jdk

.PHONY: chromium
chromium: ## Chromium, which the tests of the console need: found, or installed by the package manager
	@tools/ensure-chromium.sh

.PHONY: demo
demo: venv $(if $(findstring --spark,$(ARGS)),jre) ## real flights in, every broker killed with SIGKILL, every record read back; ARGS=--spark: by Spark, straight from the bucket, and with --master on a cluster
	$(BIN)/penstock demo $(ARGS)

.PHONY: dev
dev: venv ## a local cluster with an S3 server; Ctrl-C stops it
	$(BIN)/penstock dev $(ARGS)

# Iceberg's runtime ends at Spark 4.1, and everything else here runs on a newer one.
PIPELINE := .venv-pipeline
$(PIPELINE)/.installed: $(STAMP) examples/pipeline/requirements.txt
	@echo "installing into $(PIPELINE) ..."
	@$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(PIPELINE)
	@grep -v '^pyspark==' constraints.txt > $(PIPELINE)/constraints.txt
	@# Spark waits only 10 s for a Python process, which has to compile everything otherwise.
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(PIPELINE)/bin/python -c $(PIPELINE)/constraints.txt \
	    -e '.[demo,spark]' -r examples/pipeline/requirements.txt
	@touch $@

.PHONY: pipeline
pipeline: $(PIPELINE)/.installed jre ## the reference pipeline: flights through Spark to Iceberg, with kills of brokers and driver; ARGS='--flights 336776 --kills 5'
	PYTHONPATH=examples $(PIPELINE)/bin/python -m pipeline.local $(ARGS)

.PHONY: format
format: venv ## rewrite the sources in the house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

CHECKS := check-rules check-pyright check-mypy check-style

.PHONY: check
check: venv ## lint, types (mypy and pyright, strict), import contracts, house rules, generated files, the docs site
	@$(MAKE) --no-print-directory -j$(JOBS) --output-sync=target $(CHECKS)

.PHONY: $(CHECKS)
check-rules:
	$(MEASURED) $(BIN)/pytest -q -p no:cacheprovider tests/tidy tests/helm/test_helm_files.py
check-pyright:
	$(MEASURED) $(BIN)/pyright --pythonpath $(BIN)/python
check-mypy:
	$(MEASURED) $(BIN)/mypy
check-style:
	$(MEASURED) $(BIN)/ruff format --check .
	$(MEASURED) $(BIN)/ruff check .
	$(MEASURED) $(BIN)/lint-imports --config .importlinter

# Strict: a broken link or anchor, or a page that is in no section, fails.
.PHONY: docs
docs: venv ## the docs site, into site/; fails on broken links and anchors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "built site/; to read it: $(BIN)/python -m http.server --bind 127.0.0.1 --directory site 8000, then open http://127.0.0.1:8000"

.PHONY: reference
reference: venv ## rewrite the pages of docs/reference that are generated from the code
	$(BIN)/penstock config docs > docs/reference/configuration.md
	$(BIN)/python -m tools.reference.metrics > docs/reference/metrics.md
	$(BIN)/python -m tools.reference.doctor > docs/reference/doctor.md
	$(BIN)/python -m tools.reference.cli docs/reference/cli
	$(BIN)/python -m tools.reference.errors > docs/reference/errors.md
	$(BIN)/python -m tools.reference.kafka_apis > docs/reference/kafka-apis.md
	$(BIN)/python -m tools.reference.metadata_records > docs/reference/metadata-records.md
	$(BIN)/python -m tools.reference.python_api > docs/reference/python-api.md
	$(BIN)/python -m tests.interop.commands > docs/reference/kafka-tools.md

# Three targets at a time, long ones first: test-fast computes, and the others use half a core each, because they wait for processes.
# The output of each comes when it ends; after a failure no other begins.
LANES := helm-program versitygw test-fast test-spark test-pipeline test-system test-interop test-table helm console test-stores

.PHONY: test
test: venv ## everything that CI runs: 25 to 45 minutes on 2 cores
	@rm -rf .make/lanes
	@$(MAKE) --no-print-directory -j3 --output-sync=target test-packages $(CHECKS)
	@$(MAKE) --no-print-directory -j3 --output-sync=target $(LANES)
	@$(BIN)/python -m tools.lanes report

.PHONY: test-packages
test-packages: jre
	@tools/ensure-java.sh --jdk $(IF_POSSIBLE)
	@tools/ensure-chromium.sh $(IF_POSSIBLE)

.PHONY: console
console: venv ## the web console's tests in a browser
	@tools/ensure-chromium.sh $(IF_POSSIBLE)
	$(MEASURED) $(BIN)/pytest -q tests/console $(ARGS)

.PHONY: screenshots
screenshots: venv chromium ## renew the pictures of docs/how-to/console.md
	$(BIN)/python -m tests.console.screenshots

# Go compiles both, once; that takes minutes.
.PHONY: helm-program versitygw
helm-program:
	@tools/ensure-helm.sh --if-possible > /dev/null
versitygw:
	@tools/ensure-s3-servers.sh $(IF_POSSIBLE) versitygw > /dev/null

.PHONY: test-fast
test-fast: venv
	$(MEASURED) $(BIN)/pytest -q -n $(WORKERS) --dist worksteal tests/unit tests/property tests/fuzz tests/scenarios tests/sim tests/attacks tests/integration $(ARGS)

.PHONY: test-system
test-system: venv chaos-clients
	PYTHONPATH=$(VENV)/chaos-clients $(MEASURED) $(BIN)/pytest -q tests/system/test_system_chaos.py $(ARGS)
	$(MEASURED) $(BIN)/pytest -q tests/system --ignore=tests/system/test_system_chaos.py $(ARGS)

.PHONY: test-interop
test-interop: venv
	$(MEASURED) $(BIN)/pytest -q tests/interop -m "not long" $(ARGS)

.PHONY: test-spark
test-spark: venv
	$(MEASURED) $(BIN)/pytest -q tests/spark -m "not long" $(ARGS)

.PHONY: test-pipeline
test-pipeline: $(PIPELINE)/.installed
	$(MEASURED) $(PIPELINE)/bin/pytest -q --rootdir=. examples/pipeline $(ARGS)

.PHONY: test-table
test-table: venv
	$(MEASURED) $(BIN)/pytest -q tests/table -m "not long" $(ARGS)

.PHONY: test-stores
test-stores: venv versitygw
	$(MEASURED) $(BIN)/pytest -q tests/stores -m "not long" $(ARGS)

.PHONY: interop
interop: venv ## Java programs on Penstock: Kafka's tools, clients, Streams and Connect, a schema registry; kafkajs and Go clients; the tests of librdkafka and of franz-go; an hour
	@tools/ensure-java.sh --jdk $(IF_POSSIBLE)
	@tools/ensure-librdkafka.sh $(IF_POSSIBLE) > /dev/null
	@tools/ensure-kgo.sh $(IF_POSSIBLE) > /dev/null
	@tools/ensure-go-members.sh $(IF_POSSIBLE) > /dev/null
	$(BIN)/pytest -q tests/interop $(ARGS)

# Besides the pinned version, the newest of each earlier minor version that works.
SPARKS := 4.0.5 4.1.4 4.2.1
.PRECIOUS: .venv-spark-%/.installed
.venv-spark-%/.installed: $(STAMP)
	@echo "installing into $(@D) ..."
	@$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(@D)
	@grep -v '^pyspark==' constraints.txt > $(@D)/constraints.txt
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(@D)/bin/python -c $(@D)/constraints.txt \
	    -e '.[demo,schemas,spark]' pyspark==$* aiokafka confluent-kafka hypothesis pytest pytest-asyncio pytest-timeout
	@touch $@

.PHONY: spark-versions
spark-versions: $(SPARKS:%=.venv-spark-%/.installed) jre ## source and sink on each version of Spark from 4.0 on, each in an environment of its own, and a table of the results; ARGS='-k table'
	$(BIN)/python -m tools.spark_versions $(SPARKS:%=.venv-spark-%/bin/python) $(BIN)/python -- $(ARGS)

.PHONY: spark-cluster
spark-cluster: venv jre ## Spark on a standalone cluster and through Spark Connect, with every way to ship Penstock, with Iceberg on exported tables, and as the engine of table runners; then spark-versions; 30 minutes
	@tools/ensure-java.sh --jdk $(IF_POSSIBLE)
	$(BIN)/pytest -q tests/spark/test_spark_standalone.py tests/table/test_table_iceberg_spark.py tests/table/test_table_runner_spark.py $(ARGS)
	@$(MAKE) --no-print-directory spark-versions

.PHONY: stores
stores: venv jre ## a directory, memory, moto, stand-ins for Google and S3 Express, Azurite (npm), and versitygw, MinIO and SeaweedFS, compiled once with Go: contract, failover, scan, Spark and demo, with a table; 15 minutes
	@tools/ensure-s3-servers.sh $(IF_POSSIBLE)
	$(BIN)/pytest -q -rfE tests/stores $(ARGS)

.PHONY: helm
helm: venv helm-program ## the chart, the image's steps and compose; compiles helm once if Go is at hand
	$(MEASURED) $(BIN)/pytest -q tests/helm $(ARGS)

.PHONY: image
image: venv ## build the image with buildah on a base by mmdebstrap, and run penstock dev in it by runc; needs root and Debian; 2 to 5 minutes
	@tools/ensure-buildah.sh
	$(BIN)/python -m tests.image $(ARGS)

.PHONY: kubernetes
kubernetes: venv ## the chart on a real API server with real controllers, and its network policies on packets; compiles them once, half an hour
	@tools/ensure-helm.sh > /dev/null
	servers=$$(tools/ensure-kubernetes.sh) && PENSTOCK_KUBERNETES=$$servers unshare --map-root-user --net \
		sh -c 'ip link set lo up && exec "$$@"' kubernetes $(BIN)/pytest -q tests/kubernetes $(ARGS)

.PHONY: monitoring
monitoring: venv ## alerts and dashboards in Prometheus, and by Grafana's schema, compiled once with Go (10 minutes); 5 minutes
	@tools/ensure-monitoring.sh > /dev/null
	$(BIN)/pytest -q tests/monitoring $(ARGS)

.PHONY: kernels
kernels: venv ## compile protocol/batch/native/walk.c for every platform, after it was changed
	sh protocol/batch/native/build.sh $(BIN)/python

.PHONY: unit
unit: venv ## the fast tests alone
	$(BIN)/pytest -q -n $(JOBS) tests/unit tests/property tests/scenarios $(ARGS)

.PHONY: sim
sim: venv ## the deterministic simulator, SEEDS=200 of them
	$(BIN)/python -m tests.sim.raft --seeds $(SEEDS)
	$(BIN)/python -m tests.sim --jobs $(JOBS) --seeds $(SEEDS) $(ARGS)

.PHONY: chaos-clients
chaos-clients: venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/chaos-clients -r tests/chaos/requirements.txt

.PHONY: chaos
chaos: chaos-clients ## real processes under faults for MINUTES=10: kill -9, pauses, cut links, a failing store; ARGS='--seed N' repeats
	PYTHONPATH=$(VENV)/chaos-clients $(BIN)/python -m tests.chaos --minutes $(MINUTES) $(ARGS)

# A wheel or nothing: it takes clang and minutes to compile.
.PHONY: atheris
atheris: venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --upgrade --target $(VENV)/atheris -r tests/fuzz/requirements.txt 2> /dev/null \
	    || echo "atheris cannot be installed here: inputs are mutated at random, not by coverage"

.PHONY: fuzz
fuzz: atheris ## every reader of bytes from outside with mutated inputs, for MINUTES=10 in all; ARGS=TARGET for one of them
	PYTHONPATH=$(VENV)/atheris $(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(ARGS)

.PHONY: bench
bench: venv ## measure the figures of docs/performance.md, as ratios within this run
	$(BIN)/python -m benchmarks $(ARGS)

.PHONY: bench-kafka
bench-kafka: venv ## Penstock beside Apache Kafka on this machine, about 40 minutes; ARGS=--quick: 2 minutes; ARGS="small kill": some rows
	@tools/ensure-java.sh --jdk $(IF_POSSIBLE)
	@tools/ensure-s3-servers.sh --if-possible versitygw > /dev/null
	$(BIN)/python -m benchmarks.beside_kafka $(ARGS)

.PHONY: bench-spark
bench-spark: venv jre ## the same for Spark and the Arrow reader; ARGS='--bytes 200MB' for a quick look
	$(BIN)/python -m benchmarks.spark $(ARGS)

.PHONY: bench-spark-sources
bench-spark-sources: $(PIPELINE)/.installed jre ## Spark queries beside its Kafka source and Parquet, 10 minutes; ARGS='--bytes 400MB'
	@tools/ensure-java.sh --jdk $(IF_POSSIBLE)
	$(PIPELINE)/bin/python -m benchmarks.spark_sources $(ARGS)

.PHONY: release-check
release-check: venv ## before a release: build, twine check, and each extra in an empty environment on each Python at hand; ARGS=--pinned
	$(BIN)/python -m tools.release_check $(ARGS)

.PHONY: constraints
constraints: venv ## renew constraints.txt from what is installed now, and constraints-hashes.txt
	@{ echo "# Names and versions that CI and 'make venv' install; renew with 'make constraints'."; \
	   $(BIN)/uv pip freeze --python $(BIN)/python --exclude-editable; } > constraints.new && mv constraints.new constraints.txt
	@{ echo "# The hashes of constraints.txt, which make venv and the image verify; renew with 'make constraints'."; \
	   $(BIN)/uv pip compile --quiet --no-deps --generate-hashes --no-header --no-annotate constraints.txt; } > constraints.new && mv constraints.new constraints-hashes.txt

.PHONY: clean
clean: ## remove the environment and every cache
	rm -rf $(VENV) dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
