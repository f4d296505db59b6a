# The commands of this project. `make` alone explains them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup build finetune test test-long test-gpu mutants fuzz bench bench-gpu bundle wheel docs check-figures format lint asan tsan clean

PYTHON_BIN := $(CURDIR)/.venv/bin
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

help:
	@echo 'GhostShard: differentially private training at almost the speed of fully sharded training.'
	@echo
	@echo '  make finetune   fine-tune a small GPT-2 on real texts under a privacy budget, two ranks on this CPU'
	@echo '  make test       build everything, run every test; the last line is "N passed, N failed"'
	@echo
	@echo '  make test-long  the sweeps and long runs that "make test" leaves out, for most of an hour'
	@echo '  make setup      only what the others do first: missing system packages, .venv with pinned wheels'
	@echo '  make build      the programs, into build/release/bin'
	@echo '  make bench      build and run the micro-benchmarks; results go to build/release/bench'
	@echo '  make format     clang-format over the C++ files of the tree'
	@echo '  make lint       fails if C++ is not formatted, or clang-tidy or ruff finds something'
	@echo '  make asan       the C++ tests with AddressSanitizer and UBSan; the last line is "N passed, N failed"'
	@echo '  make tsan       the same with ThreadSanitizer'
	@echo '  make mutants    plants one fault after the other in a copy of the tree: the tests must see each of them'
	@echo '  make fuzz       fuzzers on the readers of ledgers, events, reports and receipts, a minute each (clang); the last line is "N runs, N crashed"'
	@echo '  make test-gpu   the CUDA kernels and the engine on them, from Python too: builds (CUDA toolkit), tests if there is a GPU'
	@echo '  make bench-gpu  kernels and steps beside their peers on a GPU: builds, and measures for some 20 minutes if there is one'
	@echo '  make check-figures  are the figures in README and docs still true? (quiet machine, a quarter of an hour)'
	@echo '  make bundle     programs, modules, tests and benches for CUDA in one archive, for a machine without network or compiler'
	@echo '  make wheel      a wheel without libtorch in it, for the torch of .venv or of WHEEL_PYTHONS; build/wheel'
	@echo '  make docs       the documentation with search and API pages, build/docs/site/index.html'
	@echo '  make clean      remove build/ (runs/, data-cache/ and .venv/ stay)'
	@echo
	@echo '  BENCH_FLAGS=…   of bench-gpu: --short, --minutes N'
	@echo '  FIGURE_FLAGS=…  of check-figures: --all, --only WORD, --raise-ratchet, --documents, --write'
	@echo '  BUNDLE_FLAGS=…  of bundle: --python PATH, a further Python (with headers) to build the modules for; repeatable'
	@echo '  LINT_FLAGS=…    of lint: --since COMMIT, clang-tidy reads what has changed since'
	@echo '  MUTANT_FLAGS=…  of mutants: --short, --only NAME, --list, --here'
	@echo '  FUZZ_FLAGS=…    of fuzz: --seconds N, --runs N, and then ledger, event, report or receipt'
	@echo '  JOBS=N          compile N files at a time (now: $(JOBS); a file of LibTorch takes up to 2 GB of memory)'

setup:
	@tools/setup.sh

build: setup
	@tools/build.sh -j $(JOBS)

finetune:
	@tools/setup.sh run
	@tools/build.sh -j $(JOBS) ghostshard-finetune-gpt2 ghostshard-account
	@$(PYTHON_BIN)/python examples/gpt2/demo/demo.py

test: build
	@tools/run_tests.sh -j $(JOBS)

test-long: build
	@tools/run_tests.sh -j $(JOBS) --long

mutants: setup
	@$(PYTHON_BIN)/python tools/mutants/run.py -j $(JOBS) $(MUTANT_FLAGS)

fuzz: setup
	@tools/run_fuzz.sh -j $(JOBS) $(FUZZ_FLAGS)

test-gpu: setup
	@tools/run_gpu_tests.sh -j $(JOBS)

bench: build
	@tools/run_benches.sh

bench-gpu: setup
	@tools/run_gpu_benches.sh -j $(JOBS) $(BENCH_FLAGS)

check-figures: build
	@$(PYTHON_BIN)/python tools/check_figures.py $(FIGURE_FLAGS)

bundle: setup
	@tools/bundle/make.sh -j $(JOBS) $(BUNDLE_FLAGS)

wheel: setup
	@tools/wheel.sh -j $(JOBS) $(WHEEL_PYTHONS)

docs:
	@tools/docs/make.sh

format: setup
	@tools/format.sh

lint: setup
	@tools/lint.sh -j $(JOBS) $(LINT_FLAGS)

asan tsan: setup
	@tools/run_sanitizer.sh $@ -j $(JOBS)

clean:
	rm -rf build
