# Everything runs in .venv, at the versions of requirements.lock. `make` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := 26.3
# Without --no-compile, pip compiles all of Spark and its like, which takes longer than it saves.
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --root-user-action ignore --progress-bar off \
    --no-compile --constraint requirements.lock

# Spark's workers run the interpreter of this environment.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
# Spark starts in half of the CPU time with its classes in an archive; the tests start a dozen Java processes and more.
export SPARK_SUBMIT_OPTS := -XX:SharedArchiveFile="$(CURDIR)/$(VENV)/spark.jsa" -Xlog:disable
# Keep bytecode: the tests start hundreds of processes, and each would compile Lancekeep.
export PYTHONDONTWRITEBYTECODE :=
# Nothing here computes with matrices. numpy would start a thread per core in each process, which takes 0.1 s of CPU.
export OPENBLAS_NUM_THREADS := 1

MAKEFLAGS += --no-print-directory
.DELETE_ON_ERROR:
ENGINES := pylance-4.0.2 pylance-13.0.0

.PHONY: help demo test older hive quick check chart docs dist format soak bench setup engines lock clean java

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'

demo: java $(VENV)/installed-demo ## ingest a year of flights into bronze, silver and gold tables, kill Spark midway, and run it again
	@$(BIN)/python examples/demo.py

test: java check engines $(VENV)/spark.jsa ## check, then run the tests in 4 processes; fewer processes, some tests: make test WORKERS=2 ARGS="-k redis"
	@$(BIN)/python -m pytest -n $(or $(WORKERS),4) --durations=10 $(ARGS)

quick: $(VENV)/installed-test ## run the unit tests and the port contracts in memory: no Docker, no Java, within a minute
	@$(BIN)/python -m pytest -q -n $(or $(WORKERS),2) --durations=3 --ignore=tests/unit/test_packaging.py \
	    tests/unit $(wildcard tests/contracts/test_*_stores.py) -k "not contracts or memory" $(ARGS)

check: $(VENV)/installed-test ## check lint, format, types, the direction of imports, and language
	@mkdir -p typings && ln -sfn ../src typings/lancekeep  # type checkers do not follow an editable install
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python docs/check_language.py

format: $(VENV)/installed-test ## format the code and sort its imports
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

# Its tests take longer than any of `make test`, and those that `make test` leaves out are among them.
soak: export PYTEST_ADDOPTS := -o faulthandler_timeout=0 -m 'soak or not soak'
soak: $(VENV)/installed-test ## run the tests that make test leaves out, and the random ones with fresh seeds and more kills: make soak MINUTES=30 KILLS=1000 DRIVERS=100
	@$(BIN)/python -m pytest -m soak
	@LANCEKEEP_SOAK_MINUTES=$(or $(MINUTES),10) $(BIN)/python -m pytest tests/simulation -s -k fresh
	@LANCEKEEP_SOAK_MINUTES=$(or $(MINUTES),10) $(BIN)/python -m pytest tests/readers -s -k fresh
	@LANCEKEEP_SOAK_MINUTES=$(or $(MINUTES),10) $(BIN)/python -m pytest tests/integration/test_random_flips.py -s -k fresh
	@LANCEKEEP_KILLS=$(or $(KILLS),200) $(BIN)/python -m pytest tests/integration/test_native_writers.py tests/integration/test_transactions.py -k killed
	@LANCEKEEP_ALL_CLIENTS=1 $(BIN)/python -m pytest -q tests/integration/test_rest_behaviours.py -k Generated
	@LANCEKEEP_SERVER_MINUTES=$(or $(MINUTES),10) $(BIN)/python -m pytest tests/integration/test_server_soak.py -s
	@LANCEKEEP_POSTGRES_MINUTES=$(or $(MINUTES),10) $(BIN)/python -m pytest tests/integration/test_postgres_soak.py -s
	@LANCEKEEP_DRIVER_KILLS=$(or $(DRIVERS),50) $(BIN)/python -m pytest tests/integration/test_killed_drivers.py -s
	@LANCEKEEP_DRIVER_KILLS=10 $(BIN)/python -m pytest tests/integration/test_spark_writers.py
	@LANCEKEEP_SPARK_MUTATIONS=100 $(BIN)/python -m pytest tests/integration/test_spark_oracle.py
	@LANCEKEEP_STREAM_MINUTES=$(or $(MINUTES),10) $(BIN)/python -m pytest tests/integration/test_stream_soak.py -s
	@LANCEKEEP_KILLS=$(or $(KILLS),50) $(BIN)/python -m pytest tests/integration/test_rest_behaviours.py -k killed
	@LANCEKEEP_ALL_STORES=1 $(BIN)/python -m pytest -q tests/integration/test_keyed_appends.py
	@LANCEKEEP_KILLS=$(or $(KILLS),50) $(BIN)/python -m pytest tests/integration/test_copy_catalog*.py -k "random or fault_of or pages"
	@LANCEKEEP_KILLS=$(or $(KILLS),50) $(BIN)/python -m pytest tests/integration/test_hive_home.py -k "killed or lost"
	@LANCEKEEP_KILLS=$(or $(KILLS),50) $(BIN)/python -m pytest tests/integration/test_hive_metastore.py -k share_a_catalog
	@LANCEKEEP_ALL_CLIENTS=1 $(BIN)/python -m pytest -q tests/integration/test_namespace_behaviours.py -k TestHive
	@LANCEKEEP_HIVE_DATABASE=postgresql $(BIN)/python -m pytest -q -k "hive or Hive" \
	    tests/integration/test_hive_home.py tests/integration/test_namespace_behaviours.py
	@LANCEKEEP_REST_EXAMPLES=100 $(BIN)/python -m pytest tests/fuzz/test_rest_requests.py
	@LANCEKEEP_MUTATIONS=2000 $(BIN)/python -m pytest tests/integration/test_mutated_transactions.py -s
	@LANCEKEEP_MODEL=large $(BIN)/python -m pytest tests/model

older: $(VENV)/installed-test ## test the data source with an older Spark: make older SPARK=4.0.5
	@$(BIN)/python -m pip install --quiet --no-deps --upgrade --target build/spark-$(SPARK) pyspark==$(SPARK)
	@LANCEKEEP_NO_SKIP= PYTHONPATH=$(CURDIR)/build/spark-$(SPARK) $(BIN)/python -m pytest -q -k "not geometry and not geography" \
	    tests/integration/test_spark_source.py tests/integration/test_spark_types.py tests/integration/test_spark_stream.py \
	    $(if $(filter-out 4.0.%,$(SPARK)),tests/integration/test_spark_filters.py)

hive: $(VENV)/installed-test ## test with a Hive Metastore of release 4, which Maven fetches: make hive HIVE=4.0.1
	@mvn -q -f tests/hive/pom.xml -Dhive=$(or $(HIVE),4.0.1) dependency:copy-dependencies \
	    -DoutputDirectory=$(CURDIR)/build/hive-$(or $(HIVE),4.0.1)
	@LANCEKEEP_NO_SKIP= LANCEKEEP_HIVE_JARS=$(CURDIR)/build/hive-$(or $(HIVE),4.0.1) $(BIN)/python -m pytest -q -k "hive or Hive" \
	    tests/integration/test_hive_client.py tests/integration/test_hive_home.py tests/integration/test_namespace_behaviours.py \
	    tests/contracts/test_hive_commit_store.py tests/contracts/test_manifest_stores.py

chart: export PATH := $(CURDIR)/build/helm-$(or $(HELM),3.17.3):$(PATH)
chart: $(VENV)/installed-test ## test the Helm chart with a Helm that Go builds: make chart HELM=3.17.3
	@[ -x build/helm-$(or $(HELM),3.17.3)/helm ] || GOBIN=$(CURDIR)/build/helm-$(or $(HELM),3.17.3) \
	    go install helm.sh/helm/v3/cmd/helm@v$(or $(HELM),3.17.3)
	@LANCEKEEP_NO_SKIP=1 $(BIN)/python -m pytest -q -m "soak or not soak" -k chart tests/integration/test_server_example.py

docs: $(VENV)/installed-test ## build the documentation site in site/; fail on a warning or a broken internal link
	@mkdir -p typings && ln -sfn ../src typings/lancekeep
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir $(abspath $(or $(SITE),site))

dist: $(VENV)/installed-test ## build the distributions in dist/, and check them
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation
	@$(BIN)/python -m twine check --strict dist/*

bench: export LANCEKEEP_RESULTS := $(CURDIR)/benchmarks/results.json
bench: $(VENV)/installed-test ## run the benchmarks, keep their figures in benchmarks/results.json, and write them to the page
	@for benchmark in $(filter-out benchmarks/results.py,$(wildcard benchmarks/*.py)); do \
	    echo "== $$benchmark"; $(BIN)/python $$benchmark || exit 1; done
	@$(BIN)/python docs/performance_table.py

setup: $(VENV)/installed-test ## install the development environment into .venv

engines: $(ENGINES:%=$(VENV)/engines/%/installed) ## install the older engines that the tests drive

lock: $(BIN)/python ## pin the requirements of pyproject.toml in requirements.lock; upgrade all: make lock UPGRADE=1
	@$(INSTALL) --quiet uv
	@$(BIN)/uv pip compile pyproject.toml --extra test --universal --python-version 3.11 \
	    $(if $(UPGRADE),--upgrade) --no-header --no-annotate --quiet --output-file requirements.lock

clean: ## remove .venv and all generated files
	@rm -rf $(VENV) typings build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@rm -rf demo-lake spark-warehouse metastore_db derby.log
	@find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +

java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	found=$$("$$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p'); \
	if [ "$${found:-0}" -lt 17 ]; then \
	    echo "Spark needs Java 17 or newer; found: $${found:-none}."; \
	    echo "Install the package openjdk-17-jre-headless (Debian, Ubuntu: sudo apt-get install openjdk-17-jre-headless),"; \
	    echo "or point JAVA_HOME to a newer Java."; \
	    exit 1; \
	fi >&2

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Lancekeep needs Python 3.11 or newer; $(PYTHON) is: $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12"; exit 1; } >&2
	@$(PYTHON) -c 'import ensurepip' || \
	    { echo "$(PYTHON) cannot make virtual environments; install the package python3-venv."; exit 1; } >&2
	@echo "== Creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

# Each engine has an environment of its own. Pinned with all that it needs, so there is nothing to resolve.
$(VENV)/engines/%/installed: tests/fixtures/engines/%.txt | $(VENV)/installed-test
	@echo "== Installing $* into $(@D) (450 MB; later runs skip this)"
	@$(BIN)/python -m venv --clear --without-pip $(@D)
	@$(BIN)/python -m pip --python $(@D) install --disable-pip-version-check --root-user-action ignore --quiet --no-deps --no-compile \
	    --only-binary :all: --requirement $<
	@touch $@

$(VENV)/spark.jsa: $(VENV)/installed-test tests/spark_classes.py
	@$(BIN)/python tests/spark_classes.py $@ 2>/dev/null || echo "No archive of Spark's classes: its processes start more slowly."

# Install setuptools first, at its locked version, because the build needs it, and a pip that takes half of the CPU time of
# the one that Python 3.11 brings.
$(VENV)/installed-%: pyproject.toml requirements.lock | $(BIN)/python
	@echo "== Installing Lancekeep with the extra '$*' into $(VENV) (Spark alone takes 450 MB; later runs skip this)"
	@$(INSTALL) pip==$(PIP) setuptools
	@$(INSTALL) --no-build-isolation --editable '.[$*]'
	@touch $@ $(if $(filter test,$*),$(VENV)/installed-demo)  # the test extra includes the demo's
	@echo "== Installed"
