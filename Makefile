.PHONY: horovod demo docs simulate test test-ring test-browser test-kubernetes churn churn-ring fuzz-jobs check bench fix lock prepare clean cluster
BIN := .venv/bin
WORKERS ?= 2
CLUSTERS ?= 4
# Tests start a thousand processes: what Python compiles once is kept, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=
# Tests of a file share jobs; tests/conftest.py has the longest files go first.
BY_FILE := --dist loadfile --no-loadscope-reorder

demo: prepare  ## Train digits with a worker killed halfway, evaluate, export, load back, predict.
	$(BIN)/python -m scripts.demo

test: prepare horovod  ## Every test; browsers and rings, and those on a real Kubernetes where they can run, last: they disturb others. With ARGS (for pytest) without these.
	@status=0; \
	[ -n "$(ARGS)" ] || scripts/test-programs || status=$$?; \
	$(BIN)/python -m pytest -n $(WORKERS) $(BY_FILE) --ignore tests/browser --ignore tests/ring --ignore tests/kubernetes $(ARGS) || status=$$?; \
	[ -n "$(ARGS)" ] || $(BIN)/python -m pytest -n $(WORKERS) $(BY_FILE) tests/browser tests/ring || status=$$?; \
	[ -n "$(ARGS)" ] || scripts/test-kubernetes $(CLUSTERS) || status=$$?; \
	exit $$status

test-browser: prepare  ## The status page in Chromium.
	@scripts/test-programs
	$(BIN)/python -m pytest tests/browser $(ARGS)

test-kubernetes: prepare  ## Tests on a real Kubernetes: one made here (Linux, root, Go), or the one that KUBECONFIG names.
	@scripts/test-kubernetes $(CLUSTERS) $(ARGS)

test-ring: horovod  ## Rings of real processes: members killed, stopped, joining.
	$(BIN)/python -m pytest tests/ring $(ARGS)

simulate: prepare  ## Random whole jobs on simulated time, in one process: docs/testing.md. ARGS="--jobs 100000 --seconds 600" for long.
	$(BIN)/python -m tests.simulation $(ARGS)

churn: prepare  ## Twenty whole jobs with seeds, a worker killed every few seconds in each.
	ELASTICDL_CHURN_SEEDS=20 $(BIN)/python -m pytest -s tests/process/test_job_churn.py $(ARGS)

churn-ring: horovod  ## Twenty whole jobs on a ring with seeds, a member killed every five seconds in each.
	ELASTICDL_CHURN_SEEDS=20 $(BIN)/python -m pytest -s tests/ring/test_ring_churn.py $(ARGS)

fuzz-jobs: horovod  ## Whole jobs with random flags for ten minutes, both strategies, seeds printed; ARGS='--seconds 3600 --kill 0.3'.
	$(BIN)/python -m tests.fuzz_jobs --seconds 600 $(ARGS)

horovod: prepare  ## Build Horovod for this TensorFlow and install it: AllreduceStrategy needs it (3 minutes on 2 cores, once; kept in ~/.cache/elasticdl).
	@scripts/horovod

check: prepare docs  ## Format, lint, types, layers, documentation.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: prepare  ## The documentation as a site in build/site; a broken link or an unknown name is an error.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: horovod  ## Figures against their baselines, all in one run: a table and bench/results/*.json.
	$(BIN)/python -m bench $(ARGS)

fix: prepare  ## Format and mend what can be mended by itself.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

cluster: prepare  ## A real Kubernetes in namespaces of its own, until Ctrl-C (Linux, root, Go).
	$(BIN)/python -m tests.kubernetes.cluster.cluster

prepare:
	@scripts/prepare

lock: prepare  ## Pin everything anew, with hashes, within pyproject.toml's bounds.
	$(BIN)/python -m pip install --quiet 'uv>=0.9,<1'
	$(BIN)/uv pip compile pyproject.toml --extra zoo --extra dev --extra docs --generate-hashes --no-annotate --no-header \
	    --python-version 3.11 --no-emit-index-url --output-file requirements.lock

clean:
	rm -rf .venv build *.egg-info elasticdl/native/_native*.so elasticdl/rpc/elasticdl_pb2* elasticdl/page/vendor
