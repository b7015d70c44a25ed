.PHONY: experiments fuzz horovod demo docs simulate chaos chaos-local chaos-cluster mutants test test-ring test-browser test-kubernetes churn churn-ring churn-servers fuzz-jobs check bench fix lock prepare clean cluster wheel
BIN := .venv/bin
# Many tests wait for processes: four use two cores better than two.
WORKERS ?= 4
CLUSTERS ?= 3
EXPERIMENTS = edl1 edl2 elasticdl1 elasticdl1-gpu elasticdl2 elasticdl3 trials volcano
# Tests start a thousand processes: what Python compiles once is kept, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=
LOCK = $(BIN)/uv pip compile --quiet --generate-hashes --no-annotate --no-header --python-version 3.11 --no-emit-index-url

demo: prepare  ## Train digits with a worker killed halfway, evaluate, export, load back, predict.
	$(BIN)/python -m scripts.demo

test: prepare horovod  ## All tests; with ARGS (for pytest) not those of browser, rings and Kubernetes.
	@scripts/test $(WORKERS) $(CLUSTERS) $(ARGS)

test-browser: prepare  ## The status page in Chromium.
	@scripts/test-programs
	$(BIN)/python -m pytest tests/browser $(ARGS)

test-kubernetes: prepare  ## Tests on a real Kubernetes: a local one (Linux, root, Go), or that of KUBECONFIG.
	@scripts/test-kubernetes $(CLUSTERS) $(ARGS)

test-ring: horovod  ## Rings of real processes: members killed, stopped, joining.
	$(BIN)/python -m pytest tests/ring $(ARGS)

simulate: prepare  ## Random whole jobs in simulated time, in one process: docs/testing.md. For a long run: ARGS="--jobs 100000 --seconds 600".
	$(BIN)/python -m tests.simulation $(ARGS)

chaos: prepare  ## Ten thousand simulated jobs with faults, with new seeds, on all cores: docs/testing.md. An hour on 2 cores.
	$(BIN)/python -m tests.simulation --jobs 3334 --seed $$(date +%s) --processes $(WORKERS) $(ARGS)

chaos-local: horovod  ## A hundred real jobs with random flags; master, workers and servers get SIGKILL, SIGSTOP and SIGTERM.
	$(BIN)/python -m tests.fuzz_jobs --chaos master,worker,ps --seconds 36000 --jobs 100 $(ARGS)

chaos-cluster: horovod  ## Twenty real jobs with random flags on a local Kubernetes that takes their pods away (Linux, root, Go): docs/testing.md.
	@tests/kubernetes/cluster/programs/build >/dev/null
	$(BIN)/python -m tests.kubernetes.chaos --jobs 20 $(ARGS)

mutants: prepare  ## 300 random small defects of the master, and which of them nothing notices: docs/testing.md.
	$(BIN)/python -m tests.mutation $(ARGS)

churn: prepare  ## Twenty whole jobs with seeds, a worker killed every few seconds in each; then jobs whose master or supervisor is killed.
	ELASTICDL_CHURN_SEEDS=20 $(BIN)/python -m pytest -s tests/process/test_job_churn.py \
		tests/process/test_master_process_job.py::test_whenever_masters_are_killed_the_job_is_done \
		tests/process/test_master_process_job.py::test_whenever_the_supervisor_is_killed_nobody_is_left_and_the_job_can_be_resumed $(ARGS)

churn-ring: horovod  ## Twenty whole jobs on a ring with seeds, a member killed every five seconds in each.
	ELASTICDL_CHURN_SEEDS=20 $(BIN)/python -m pytest -s tests/ring/test_ring_churn.py $(ARGS)

churn-servers: prepare  ## Twenty whole jobs with seeds, whose servers change from 2 to 3 and back while a server and the master are killed. ELASTICDL_CHURN_SEEDS: how many.
	ELASTICDL_CHURN_SEEDS=$${ELASTICDL_CHURN_SEEDS:-20} $(BIN)/python -m pytest -s \
		tests/process/test_job_server_kills.py::test_the_number_of_servers_changes_there_and_back_with_kills_and_loses_no_update $(ARGS)

fuzz-jobs: horovod  ## Whole jobs with random flags for ten minutes, both strategies, seeds printed; ARGS='--seconds 3600 --kill 0.3'.
	$(BIN)/python -m tests.fuzz_jobs --seconds 600 $(ARGS)

fuzz: prepare  ## Random frames (with sanitizers), requests, messages and files of checkpoints for an hour; ARGS="-k http" for some. ELASTICDL_FUZZ_S: seconds for each.
	ELASTICDL_FUZZ_S=$${ELASTICDL_FUZZ_S:-500} $(BIN)/python -m pytest -o faulthandler_timeout=0 tests/fuzz tests/process/test_bulk_native.py $(ARGS)

horovod: prepare  ## Build Horovod for this TensorFlow and install it: AllreduceStrategy needs it (3 minutes on 2 cores, once; kept in ~/.cache/elasticdl).
	@scripts/horovod

check: prepare docs  ## Format, lint, types, layers, documentation.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: prepare  ## The documentation as a site in build/site; a broken link or an unknown name is an error.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: horovod  ## Run all benchmarks beside their baselines; write a table and bench/results/*.json.
	$(BIN)/python -m bench $(ARGS)

experiments: horovod  ## Reproduce the experiments of ElasticDL, EDL and Volcano: docs/experiments.md (Linux, root, Go; six took 2.5 to 7.5 minutes each on 16 cores; edl1 and elasticdl3 have not run there as they are). NAMES="edl1 volcano" for some, ARGS=--small in minutes.
	@set -e; for name in $(or $(NAMES),$(EXPERIMENTS)); do \
		$(BIN)/python -m experiments $$name --keep build/experiments -o json $(ARGS); done

fix: prepare  ## Format, and fix what can be fixed automatically.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

cluster: prepare  ## Run a real Kubernetes in its own namespaces until Ctrl-C (Linux, root, Go).
	$(BIN)/python -m tests.kubernetes.cluster.cluster

wheel: horovod  ## Wheel, source, the ring's wheel and an SBOM in dist/; PYTHONS="python3.11 python3.13" builds for several interpreters.
	@scripts/wheel $(PYTHONS)

prepare:
	@scripts/prepare

lock: prepare  ## Pin all dependencies again, with hashes, within the bounds of pyproject.toml.
	$(LOCK) pyproject.toml --extra zoo --extra dev --extra docs --group ring --output-file requirements.lock
	$(LOCK) pyproject.toml --group ring --constraint requirements.lock --output-file docker/requirements.lock
	$(LOCK) --group build --constraint requirements.lock --output-file docker/build.lock
	$(LOCK) --group package --constraint requirements.lock --output-file scripts/wheel.lock
	mkdir -p build/gpu && sed 's/tensorflow-cpu>/tensorflow[and-cuda]>/' pyproject.toml > build/gpu/pyproject.toml
	$(LOCK) build/gpu/pyproject.toml --group build/gpu/pyproject.toml:ring --constraint requirements.lock --output-file docker/requirements-gpu.lock

clean:
	rm -rf .venv build *.egg-info elasticdl/native/_native*.so elasticdl/rpc/elasticdl_pb2* elasticdl/page/vendor
