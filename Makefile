# The whole interface for people who work on this kit: `make` lists the targets.
# Each target that needs .venv makes or repairs it first, which takes no time when nothing changed.
#
# You may set, as in `make setup PYTHON=python3.12`:
#   PYTHON       the Python that .venv is made with (3.11 to 3.13)
#   TORCH_INDEX  URL of a package index with CPU-only builds of PyTorch (Linux)
#   WHEELS       folder of wheels to install from, without network (see offline-bundle)
#   JOBS         test processes side by side (2); each holds the real model, about 2 GB
#   PYTEST_ARGS  more arguments for pytest, as in PYTEST_ARGS="-x -k acceptance"
#   UPGRADE      with `make lock`: UPGRADE=1 moves every open pin to its newest release

.DEFAULT_GOAL := help
SHELL := /bin/bash
MAKEFLAGS += --no-print-directory
export PYTHON TORCH_INDEX WHEELS

PY := .venv/bin/python
JOBS ?= 2
# One torch thread per process: two processes that share two cores must not wait for each other's threads.
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)
NBVAL := --nbval --nbval-current-env --nbval-cell-timeout=180 -p no:cacheprovider \
         --ignore=notebooks/student --ignore=notebooks/instructor
LLAMA_CPP := 0.3.36
PEERS := build/peers/llama-cpp-$(LLAMA_CPP)
PEER_PACKAGES := llama-cpp-python==$(LLAMA_CPP) diskcache==5.6.3
PEERS_CMAKE_ARGS := -DGGML_NATIVE=ON -DLLAVA_BUILD=OFF
CMAKE := .venv/bin/cmake
CLANG_FORMAT := .venv/bin/clang-format
CPP = $(wildcard $(addprefix assets/runtime/core/,include/specdec/*.h src/*.h src/*.cc) \
      $(addprefix assets/runtime/executorch/,include/specdec/*.h src/*.h src/*.cc tools/*.cc) \
      $(addprefix tests/runtime/core/,*.h *.cc *.c))

.PHONY: help setup demo lab test test-fast test-mobile test-peers lint format docs bench native results refresh student lock offline-bundle clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile

setup: ## make .venv and install the locked packages in it
	@.ci/setup.sh

demo: setup ## the main job: one prompt decoded plainly and speculatively, tokens compared, speed measured
	@.venv/bin/specdec demo

lab: setup ## open the notebooks in JupyterLab
	$(PY) -m jupyterlab --notebook-dir=notebooks

test: setup ## all tests, then every notebook run and compared with its stored outputs
	$(PYTEST) -m "not peers and not browser and not mobile" tests
	$(PYTEST) $(NBVAL) notebooks

test-fast: setup ## the tests that need neither the real model nor patience
	$(PYTEST) -m "not slow and not peers and not browser and not mobile" tests

test-mobile: setup ## build the mobile runtime and run its tests: here, under sanitizers, and for a phone's processor
	@.ci/mobile_toolchain.sh
	$(PYTEST) -m mobile tests

test-peers: setup $(PEERS) ## comparisons with other systems (builds llama.cpp once, in build/peers: some minutes)
	PYTHONPATH=$(CURDIR)/$(PEERS) $(PYTEST) -m peers tests

# From source, for this machine's processor, and outside .venv: no part of the kit needs it. Its other requirements are there.
$(PEERS): | setup
	@rm -rf $@.part && mkdir -p $@.part
	CMAKE_ARGS="$(PEERS_CMAKE_ARGS)" $(PY) -m pip install -q --no-deps --target $@.part $(PEER_PACKAGES) || { \
	  echo "test-peers: $(PEER_PACKAGES) could not be built: it needs PyPI and a C++ compiler" >&2; exit 1; }
	@mv $@.part $@

lint: setup ## code style, types and notebook rules; changes nothing
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy specdec_ref
	$(PY) -m specdec_ref.teaching.lint_notebooks notebooks
	$(CLANG_FORMAT) --dry-run -Werror $(CPP)

format: setup ## put code and notebooks into the common format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(CLANG_FORMAT) -i $(CPP)

docs: setup ## build the site in docs/_build/html from the executed notebooks
	$(PY) -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs: open docs/_build/html/index.html"

bench: setup ## measure both decoders on this machine, into build/bench_reference.json
	@mkdir -p build
	.venv/bin/specdec bench reference --json build/bench_reference.json

native: setup ## build the mobile runtime for this machine, in build/native: the core, and the tools that run .pte files
	$(CMAKE) -S assets/runtime/core -B build/native -DCMAKE_BUILD_TYPE=Release
	$(CMAKE) --build build/native --parallel
	$(CMAKE) -S assets/runtime/executorch -B build/native/executorch -DCMAKE_BUILD_TYPE=Release \
	  -Dexecutorch_DIR="$$($(PY) -c 'from specdec_ref.export.executorch.native import cmake_folder; print(cmake_folder())')"
	$(CMAKE) --build build/native/executorch --parallel

results: setup ## measure what the notebooks quote, into assets/results (50 minutes, with nothing else running)
	.venv/bin/specdec bench reference --json assets/results/reference.json
	.venv/bin/specdec bench drafts --json assets/results/drafts.json
	.venv/bin/specdec bench quant --json assets/results/quant_grid.json

refresh: setup ## make everything generated anew: golden vectors, results, then the outputs of the notebooks
	$(PY) -m specdec_ref.golden
	$(PY) -m specdec_ref.export.unicode_tables
	$(MAKE) results
	$(PY) -m specdec_ref.teaching.execute notebooks

student: setup ## make the learner's and the teacher's copies of the notebooks
	$(PY) -m specdec_ref.teaching.student

lock: setup ## pin requirements.in into requirements.txt and environment.yml
	$(PY) -m pip install -q $(if $(UPGRADE),--upgrade --upgrade-strategy eager) -r requirements.in
	$(PY) .ci/lock.py

offline-bundle: setup ## collect wheels and model in build/offline, to install from without network
	@mkdir -p build/offline/wheels
	$(PY) -m pip wheel -q --no-deps -w build/offline/wheels $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)") \
	  "torch==$$($(PY) -c 'from importlib.metadata import version; print(version("torch"))')"
	$(PY) -m pip wheel -q -w build/offline/wheels --find-links build/offline/wheels -r requirements.txt
	SPECDEC_HOME="$(CURDIR)/build/offline/home" .venv/bin/specdec fetch
	@echo "offline-bundle: copy build/offline to the other machine; README.md says how to install from it"

clean: ## remove what was built here; .venv and the downloaded model stay
	rm -rf build dist docs/_build docs/_notebooks notebooks/student notebooks/instructor ./*.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	find . -name .venv -prune -o -name .git -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) \
	  -type d -exec rm -rf {} +
