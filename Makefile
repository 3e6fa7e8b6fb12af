# Two commands: `make demo` shows the driver at work, `make test` passes the tests. Both set themselves up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUNTIME := $(VENV)/.runtime

.PHONY: help setup demo test lint bench bench-peer crash interop interop-all interop-allocator interop-packages
.PHONY: interop-scheduler hostile load fuzz release site proto lock clean

help:
	@echo 'Every day:'
	@echo '  make demo  what the driver does: publish, allocate, prepare and clean up, without a cluster'
	@echo '  make test  the tests that need no network, root or hardware'
	@echo '  make lint  ruff, mypy, import-linter'
	@echo
	@echo 'After a change of:'
	@echo '  claims, node files      make crash, make hostile  SIGKILL at every system call; random faults'
	@echo '  a parser                make fuzz                 every parser with libFuzzer, SECONDS= each'
	@echo '  speed, memory, threads  make bench-peer, make load  beside dra-driver-cpu; make bench: the simulator'
	@echo '  NRI, CDI, cgroups       make interop              a real containerd; interop-all: four; interop-vm: NUMA'
	@echo '  the simulator           make interop-scheduler    a real kube-scheduler; interop-allocator: its allocator'
	@echo '  deploy/, the image      make interop-cluster      real kubelets; half an hour a row, ROWS= for some'
	@echo '  docs/                   make site                 the manual, in dist/site'
	@echo '  metrics, findings       make tables               the tables of them in docs/'
	@echo '  proto/*.proto           make proto                the generated modules'
	@echo '  dependencies            make lock                 the lock files'
	@echo '  a release               make release              everything that it consists of, in dist/'
	@echo
	@echo 'CONTRIBUTING.md says what each of them needs.'

setup: $(STAMP)

$(STAMP): requirements/dev.lock pyproject.toml
	@sh requirements/install.sh $(VENV) requirements/dev.lock $(PYTHON)
	@touch $(RUNTIME) $@

# What the program needs to run, and no more
$(RUNTIME): requirements/run.lock pyproject.toml
	@sh requirements/install.sh $(VENV) requirements/run.lock $(PYTHON)
	@touch $@

demo: $(RUNTIME)
	@$(BIN)/dranode demo

test: setup
	@$(BIN)/python -m pytest -n auto

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: setup
	@$(BIN)/python -m tests.bench

# Beside dra-driver-cpu, built by its package's name, or PEER, a program of it; alone where it cannot be had.
bench-peer: setup
	@$(BIN)/python -m tests.bench.peer $(if $(PEER),--peer $(PEER)) $(PEER_OPTIONS)

# What starts the program many times compiles its modules once, whatever the environment says.
crash hostile test: export PYTHONDONTWRITEBYTECODE :=

# Options: --every 5 for each fifth point alone, --errors for ENOSPC, EIO, EROFS and EMFILE too.
crash: setup
	@$(BIN)/python -m tests.crash.points $(CRASH_OPTIONS)
	@$(BIN)/python -m tests.crash.points --driver memory $(CRASH_OPTIONS)
	@$(BIN)/python -m tests.crash.node_points $(CRASH_OPTIONS)
	@$(BIN)/python -m tests.crash.setting_points
	@$(BIN)/python -m tests.crash.unsynced

# 10,000 steps take about 40 s of CPU; a night takes four times 250,000 (nightly.yml).
hostile: setup
	@$(BIN)/python -m tests.hostile.run --steps $(or $(STEPS),10000) $(if $(SEED),--seed $(SEED))
	@$(BIN)/python -m tests.hostile.three_drivers --steps $(or $(THREE_STEPS),10000) $(if $(SEED),--seed $(SEED))

fuzz: setup
	@test -d .cache/fuzz/atheris || $(BIN)/uv pip install -q --python $(BIN)/python --target .cache/fuzz/atheris \
		--require-hashes --no-deps -r requirements/fuzz.lock
	@PYTHONPATH=.cache/fuzz/atheris $(BIN)/python -m fuzz.run --seconds $(or $(SECONDS),60)

load: setup
	@$(BIN)/python -m tests.load.run $(LOAD_OPTIONS)

# Real container runtimes, built from their modules: needs root and Go, and says why where it cannot run.
interop: setup interop-packages
	@INTEROP=v2.3.4 $(BIN)/python -m pytest -rs tests/interop

interop-allocator: setup
	@ALLOCATOR_SCENARIOS=$(or $(SCENARIOS),1000) $(BIN)/python -m pytest -rs tests/interop/test_allocator.py tests/interop/test_cel.py \
		tests/interop/test_device_metadata.py

interop-all: setup interop-packages
	@INTEROP="v1.7.29 v2.0.7 v2.3.4 v2.4.2" $(BIN)/python -m pytest -rs tests/interop

# Real control planes, built from their modules: needs Go, and says why where it cannot run. The first build takes long.
interop-scheduler: setup
	@INTEROP_SCHEDULER="1.36 1.37" $(BIN)/python -m pytest -rs -s tests/interop/test_scheduler.py \
		tests/interop/test_memory_slices.py tests/interop/test_amounts.py

# Kubernetes and containerd: a row of docs/compatibility.md each; ROWS= for some of them.
CLUSTER_ROWS := 1.34/v1.7.29 1.34/v2.0.7 1.35/v2.3.4 1.36/v2.3.4 1.37/v2.3.4 1.37/v2.4.2
.PHONY: interop-cluster
interop-cluster: setup interop-packages
	@INTEROP_CLUSTER="$(or $(ROWS),$(CLUSTER_ROWS))" \
		$(BIN)/python -m pytest -rs tests/interop/test_cluster.py tests/interop/test_cluster_pods.py \
		tests/interop/test_cluster_memory.py tests/interop/test_cluster_kubelet.py

# Tests that need cgroup v2, systemd and two NUMA nodes, in an emulated machine: needs root, Go and Debian's archive.
.PHONY: interop-vm
interop-vm: setup interop-packages
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! command -v qemu-system-x86_64 >/dev/null; then \
		apt-get update -qq && apt-get install -qq -y --no-install-recommends qemu-system-x86 >/dev/null; fi
	@INTEROP_VM=v2.3.4 $(BIN)/python -m pytest -rs tests/interop/test_vm.py
	@INTEROP_CLUSTER=1.37/v2.3.4/emulated $(BIN)/python -m pytest -rs tests/interop/test_cluster.py -k "restarts or quiet"

# Debian's runc and irqbalance, a static busybox, and what images are built with, where they are missing and may be
# installed: a package whose program is there is left out, since Debian's runc would take Docker's containerd.io away.
interop-packages:
	@missing=; for each in runc irqbalance busybox:busybox-static buildah mmdebstrap; do \
		command -v $${each%:*} >/dev/null || missing="$$missing $${each#*:}"; done; \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && apt-get install -qq -y -o DPkg::Lock::Timeout=300 $$missing >/dev/null; fi

# Sdist, wheel, chart, bill of materials, notices, the image where an engine is at hand, checksums. The image is built on
# BASE, for IMAGE_PLATFORMS, with IMAGE_OPTIONS for the engine (release/image.py); it is said what was built, and on what.
release: setup
	@test -x .cache/release/tools/bin/python || $(BIN)/uv venv -q --python $(BIN)/python .cache/release/tools
	@$(BIN)/uv pip sync -q --python .cache/release/tools/bin/python --require-hashes requirements/release.lock
	@.cache/release/tools/bin/python -m release

# A warning is an error: a link that leads nowhere, a page that is in no list.
site: setup
	@test -x .cache/release/site/bin/python || $(BIN)/uv venv -q --python $(BIN)/python .cache/release/site
	@$(BIN)/uv pip sync -q --python .cache/release/site/bin/python --require-hashes requirements/site.lock
	@$(BIN)/python -m release.site
	@NO_MKDOCS_2_WARNING=1 .cache/release/site/bin/mkdocs build

# The tables of docs/ that the code declares
.PHONY: tables
tables: setup
	@$(BIN)/python -m release.tables

# A virtual root keeps apart files that would be called the same: every module is dranode/proto/<name>. NRI's services are
# called over ttrpc and the API server's over HTTP, so they need no module for gRPC.
proto: setup
	@$(BIN)/python -m grpc_tools.protoc -I dranode/proto=proto --python_out=$(VENV) --pyi_out=$(VENV) \
		$(patsubst proto/%,dranode/proto/%,$(wildcard proto/*.proto))
	@$(BIN)/python -m grpc_tools.protoc -I dranode/proto=proto --grpc_python_out=$(VENV) \
		$(patsubst proto/%,dranode/proto/%,$(filter-out %/nri_v1alpha1.proto %/ttrpc.proto %/kube_resource.proto,$(wildcard proto/*.proto)))
	@mv $(VENV)/dranode/proto/*_pb2*.py $(VENV)/dranode/proto/*_pb2.pyi proto/
	@rm -r $(VENV)/dranode

lock: setup
	@$(BIN)/uv pip compile -q --universal --generate-hashes --python-version 3.11 --extra dev --extra lock \
		--no-header -o requirements/dev.lock pyproject.toml
	@$(BIN)/uv pip compile -q --universal --generate-hashes --python-version 3.11 \
		--no-header -o requirements/run.lock pyproject.toml
	@$(BIN)/uv pip compile -q --universal --generate-hashes --python-version 3.11 \
		--no-emit-package pygments --no-emit-package markdown-it-py --no-emit-package mdurl \
		--no-header -o requirements/serve.lock -c requirements/run.lock pyproject.toml
	@$(BIN)/uv pip compile -q --universal --generate-hashes --python-version 3.11 --extra auth-provider \
		--no-header -o requirements/debug.lock -c requirements/dev.lock pyproject.toml
	@$(BIN)/uv pip compile -q --universal --generate-hashes --python-version 3.11 --group release \
		--no-header -o requirements/release.lock
	@$(BIN)/uv pip compile -q --universal --generate-hashes --python-version 3.11 --group fuzz \
		--no-header -o requirements/fuzz.lock
	@$(BIN)/uv pip compile -q --universal --generate-hashes --python-version 3.11 --group site \
		--no-header -o requirements/site.lock
	@echo 'uv>=0.5,<1' | $(BIN)/uv pip compile -q --universal --generate-hashes --python-version 3.11 \
		--no-header -o requirements/uv.lock -

clean:
	rm -rf $(VENV) build dist *.egg-info
