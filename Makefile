# make demo   what PCCL saves and where, on an emulated server, in about two minutes
# make test   everything CI runs
# Both set up .venv and build/ themselves; all they need is python3, a C++ compiler and the package registries.
PYTHON ?= python3
JOBS ?= $(shell nproc)
VENV := .venv
BIN := $(abspath $(VENV))/bin
NATIVE := build/native
export PATH := $(BIN):$(PATH)

.PHONY: all setup lock native demo test test-native test-python test-e2e lint lint-quick tidy-aside e2e analyze format pictures reference docs docs-build soak sanitize coverage fuzz fuzz-python wheel wheel-arm64 test-arm64 check-wheel \
        figures-demo figures-mpi figures-daemon figures-clock figures-policies \
        figures-robustness figures-stall figures-adversity figures-clocks figures-constants figures-whatif figures-next figures-sim figures-tune figures-prove figures-analysis figures-integrations figures-accounts figures-harm figures-trust figures-first figures-fleet figures-scale figures-runs figures-hosts bench clean help

all: native

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

# Make's own commands are shown with V=1 only.
ifndef V
.SILENT:
endif
# A command whose output is shown only if it fails: $(call quietly,COMMAND,LOG).
quietly = $(1) > $(VENV)/$(2).log || { cat $(VENV)/$(2).log; exit 1; }
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Versions and hashes of all packages, the same on each machine.
LOCKED = $(PIP) --constraint requirements.lock -r
# Three steps, so that `make demo` compiles while the packages that it runs with are fetched.
setup: $(VENV)/.ready

$(VENV)/.build: pyproject.toml requirements.lock tools/list-requirements.py
	echo "setting up $(VENV) (once)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade "pip>=24"
	$(BIN)/python tools/list-requirements.py pyproject.toml build > $(VENV)/build.txt
	$(LOCKED) $(VENV)/build.txt
	touch $@

$(VENV)/.run: $(VENV)/.build
	echo "fetching Python packages (once)"
	$(BIN)/python tools/list-requirements.py pyproject.toml dependencies report live tune fleet otlp > $(VENV)/run.txt
	$(LOCKED) $(VENV)/run.txt
	$(BIN)/python tools/link-package.py $(VENV)
	touch $@

$(VENV)/.ready: $(VENV)/.run
	echo "fetching tools for tests and checks (once)"
	$(BIN)/python tools/list-requirements.py pyproject.toml dev > $(VENV)/dev.txt
	$(LOCKED) $(VENV)/dev.txt
	touch $@

# make lock    requirements.lock again, with the newest versions that pyproject.toml allows
lock: $(VENV)/.build
	$(PIP) uv
	$(BIN)/python tools/list-requirements.py pyproject.toml build wheel dependencies report live tune fleet otlp dev > $(VENV)/lock.txt
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes --no-annotate --no-header \
	  $(VENV)/lock.txt --output-file $(VENV)/locked.txt
	sed -e ':a' -e '/\\$$/{N;s/ *\\\n */ /;ba' -e '}' $(VENV)/locked.txt > requirements.lock

build/deps/.ready: tools/fetch-libraries
	tools/fetch-libraries build/deps
	touch $@

build/deps/mpi/.ready: tools/fetch-mpi $(VENV)/.ready
	PYTHON=$(BIN)/python tools/fetch-mpi build/deps/mpi
	touch $@

build/deps/mpi/.intel: tools/fetch-mpi $(VENV)/.ready
	PYTHON=$(BIN)/python tools/fetch-mpi build/deps/mpi intel
	touch $@

# make native    the libraries and programs, into build/native/stage
native: $(VENV)/.build build/deps/.ready
	test -d $(NATIVE) || echo "compiling (once, about a minute on two cores)"
	$(call quietly,cmake -S . -B $(NATIVE) -G Ninja -DPython3_EXECUTABLE=$(BIN)/python -DPOWERCCL_TESTS=OFF,cmake)
	$(call quietly,cmake --build $(NATIVE) --parallel $(JOBS),compile)

# Lines and names are enough to read a test's backtrace; variables take a quarter of the time to compile.
QUICK = -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O2 -g1 -DNDEBUG" -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O2 -g1 -DNDEBUG"
build/test/.configured: setup build/deps/.ready
	$(call quietly,cmake -S . -B build/test -G Ninja -DPython3_EXECUTABLE=$(BIN)/python -DPOWERCCL_TESTS=ON $(QUICK),cmake)

demo:
	$(MAKE) --no-print-directory -j2 native $(VENV)/.run
	$(BIN)/powerccl demo
	printf '\nTo run these commands in this shell: export PATH="%s:$$PATH"\n' "$(BIN)"

# make figures-demo      measures every figure of the demo and the profile again, into build/figures/demo.json
# make figures-first     measures a user's first minutes, into build/figures/first.json
# make figures-runs      times lists of 10,000 run folders, into build/figures/runs.json
# make figures-mpi       measures what the MPI adapter saves and costs on this machine, into build/figures/mpi.json
# make figures-tune      measures the search over NCCL's parameters on an emulated server, into build/figures/tune.json
# make figures-fleet     measures an index of 10,000 runs and questions to a million, into build/figures/fleet.json
# make figures-scale     measures reports of 4,096 ranks and of 8,000,000 kernels, into build/figures/scale.json
# make figures-prove     measures `powerccl prove` on three emulated servers and kills it 100 times, in an hour, into build/figures/prove.json
# make figures-analysis  measures energy attribution on an emulated server and what reports cost, into build/figures/analysis.json
# make figures-integrations  compares joules a step in a job with its report, on an emulated server, into build/figures/integrations.json
FIGURES = $(BIN)/python evidence/scripts/$@.py --out build/figures/$(@:figures-%=%).json
figures-demo figures-first figures-fleet figures-scale figures-runs figures-mpi figures-tune figures-prove figures-analysis figures-integrations: native setup
	POWERCCL_NATIVE=$(abspath $(NATIVE)/stage) $(FIGURES)
figures-mpi: build/deps/mpi/.ready build/deps/mpi/.intel

# make pictures    the pictures of README.md and docs/, from pages of emulated runs; needs a Chromium
pictures: native setup
	POWERCCL_NATIVE=$(abspath $(NATIVE)/stage) $(BIN)/python evidence/scripts/make-pictures.py

# make figures-policies    simulates clock policies on all built-in platforms, in a quarter of an hour, into build/figures/policies.json
# make figures-constants   simulates half and double of each constant of `auto`, in half an hour, into build/figures/constants.json
# make figures-whatif      compares what whatif predicts with what is known, in a quarter of an hour, into build/figures/whatif.json
# make figures-robustness  simulates `auto` on 280 random machines of four kinds of GPU, into build/figures/robustness.json
# make figures-stall       simulates what stalls at clock calls cost, into build/figures/stall.json
# make figures-clocks      simulates budgets, one clock for a job and when the first one comes, into build/figures/clocks.json
# make figures-adversity   tries `auto` on 33 kinds of change for an hour each in virtual time, into build/figures/adversity.json
figures-policies figures-robustness figures-stall figures-constants figures-whatif figures-adversity figures-clocks: build/test/.configured setup
	cmake --build build/test --parallel $(JOBS) --target powerccl-sim powerccl_adversity
	POWERCCL_NATIVE=$(abspath build/test/stage) $(FIGURES)

# make figures-next      judges the advice of runs whose best action is known, into build/figures/next.json; H100_RUNS=DIR: recorded runs of H100s too
figures-next: build/test/.configured setup
	cmake --build build/test --parallel $(JOBS)
	POWERCCL_NATIVE=$(abspath build/test/stage) $(FIGURES) $(if $(H100_RUNS),--real $(H100_RUNS))

# make figures-hosts     aligns clocks of two and four hosts and kills hosts 200 times, in half an hour, into build/figures/hosts.json; needs root
# make figures-sim       compares the simulator with the emulator in an hour, into build/figures/sim.json
# make figures-daemon    measures powerccld on emulated GPUs, random schedules included, into build/figures/daemon.json
# make figures-clock     kills jobs under `run --clock` at 200 random moments, in ten minutes, into build/figures/clock.json
figures-sim figures-daemon figures-clock figures-hosts: build/test/.configured setup
	cmake --build build/test --parallel $(JOBS)
	POWERCCL_NATIVE=$(abspath build/test/stage) $(FIGURES)

# The tests mostly wait for emulated time. Three at once took 5 % less time on two processors. Those that measure fail now
# and then where a host stops for a second: one that failed is run again, and named at the end.
TOGETHER = --numprocesses 2 --dist loadscope
AGAIN = --reruns 2

# The checks of one thread go beside the compiler, which waits for its slowest files. clang-tidy has what is left of the
# processors later: the end-to-end tests mostly wait for emulated time.
test:
	$(MAKE) --no-print-directory -j2 lint-quick test-native
	$(MAKE) --no-print-directory test-python
	$(MAKE) --no-print-directory -j2 tidy-aside e2e
	$(BIN)/python tools/report-skipped.py build/skipped/python.json build/skipped/e2e.json --out build/figures/skipped.json

# The native tests mostly wait: two for each processor took 44 s on two, and one for each took 77 s.
test-native: build/test/.configured
	cmake --build build/test --parallel $(JOBS)
	ctest --test-dir build/test --output-on-failure --timeout 120 --parallel $(shell expr 2 \* $(JOBS))

test-python: setup
	$(BIN)/python -m pytest $(TOGETHER) tests/python

test-e2e: test-native
	$(MAKE) --no-print-directory e2e

e2e: build/deps/mpi/.ready
	POWERCCL_NATIVE=$(abspath build/test/stage) $(BIN)/python -m pytest $(TOGETHER) $(AGAIN) -m "not slow" tests/e2e evidence/tests

# make lint    formatting, static checks and the arrows between the rooms
lint: lint-quick
	tools/check-tidy build/test

tidy-aside: build/test/.configured
	chrt --idle 0 tools/check-tidy build/test

lint-quick: setup build/test/.configured
	tools/check-format
	$(BIN)/ruff check python tests tools evidence examples
	$(BIN)/ruff format --check python tests tools evidence examples
	$(BIN)/mypy
	$(BIN)/mypy tests/e2e
	$(BIN)/mypy tests/conftest.py
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/check-arrows.py native
	$(BIN)/python tools/check-nccl-functions.py
	$(BIN)/python tools/check-figures.py
	$(BIN)/python tools/generate-reference.py --check
	$(BIN)/python tools/check-prose.py --out build/figures/words.json
	$(BIN)/zizmor --quiet --no-progress --offline .github
	$(SITE)

# make analyze    clang's static analyzer over the native sources, in minutes
ANALYSES = clang-analyzer-*,-clang-analyzer-security.insecureAPI.DeprecatedOrUnsafeBufferHandling
analyze: build/test/.configured
	tools/check-tidy build/test '$(ANALYSES),-clang-analyzer-optin.core.EnumCastOutOfRange'

format: setup
	tools/check-format --fix
	$(BIN)/ruff check --fix python tests tools evidence examples
	$(BIN)/ruff format python tests tools evidence examples

# make docs    the documentation as a site, served at http://127.0.0.1:8000; it loads nothing from a network
SITE = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
docs: docs-build
	echo "http://127.0.0.1:8000 (Ctrl-C ends it)"
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site 8000

docs-build: setup
	$(SITE)

reference: setup
	$(BIN)/python tools/generate-reference.py

# make sanitize    the native tests under ASan+UBSan and under TSan
sanitize: setup build/deps/.ready
	tools/run-sanitized address,undefined build/asan
	tools/run-sanitized thread build/tsan

# Threads count together.
COUNTED = --coverage -fprofile-update=atomic
# make coverage    lines and branches that the native and the Python tests reach, as pages in build/coverage
coverage: setup build/deps/.ready
	cmake -S . -B build/coverage/native -G Ninja -DPython3_EXECUTABLE=$(BIN)/python -DPOWERCCL_TESTS=ON \
	  -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_C_FLAGS=$(COUNTED)" "-DCMAKE_CXX_FLAGS=$(COUNTED)"
	cmake --build build/coverage/native --parallel $(JOBS)
	ctest --test-dir build/coverage/native --output-on-failure --timeout 600 --label-exclude unsanitized
	$(BIN)/gcovr --filter native/ --print-summary --html-details build/coverage/native.html build/coverage/native
	$(BIN)/python -m pytest $(TOGETHER) --cov=powerccl --cov-branch --cov-report=html:build/coverage/python tests/python

# make fuzz    native readers of others' files and messages under libFuzzer with ASan+UBSan, FUZZ_RUNS inputs each, into build/figures/fuzz.json
FUZZ_RUNS ?= 1000000
fuzz: setup build/deps/.ready
	tools/run-fuzzers build/fuzz $(FUZZ_RUNS) build/figures/fuzz.json

# make fuzz-python    Python readers with a million damaged files each, into build/figures/fuzz-python.json; goes on where it was stopped
FUZZ_RUNS ?= 1000000
fuzz-python: setup
	PYTHONPATH=tests $(BIN)/python -W ignore -m harm.readers --runs $(FUZZ_RUNS) --out build/figures/fuzz-python.json

# make figures-accounts measures whether figures agree with raw records, each other and their wholes, into build/figures/accounts.json
# make figures-harm     measures whether PowerCCL ever harms a job, a GPU, a terminal or a root service, into build/figures/harm.json
# make figures-trust    measures whether anything partial is shown as whole, or anything impossible at all, into build/figures/trust.json
figures-accounts figures-harm figures-trust: build/test/.configured
	cmake --build build/test --parallel $(JOBS)
	POWERCCL_NATIVE=$(abspath build/test/stage) PYTHONPATH=tests $(BIN)/python -m support.topics $(@:figures-%=%) --out build/figures/$(@:figures-%=%).json
figures-harm: build/deps/mpi/.ready

# make bench    Google Benchmark over the hot paths of the runtime
bench: build/test/.configured
	cmake --build build/test --parallel $(JOBS) --target powerccl_runtime_benchmark
	build/test/bench/micro/powerccl_runtime_benchmark

# make soak    a thousand random MPI programs a library, with and without the adapter, into build/figures/mpi-random.json;
# a million orders of events for the clock policy; the slow end-to-end tests, and all others once on a busy host
soak: build/test/.configured build/deps/mpi/.ready
	cmake --build build/test --parallel $(JOBS)
	POWERCCL_NATIVE=$(abspath build/test/stage) $(BIN)/python evidence/scripts/soak-mpi.py --out build/figures/mpi-random.json
	POWERCCL_TEST_ORDERS=1000000 build/test/tests/native/policy/powerccl_policy_test --gtest_filter='LearningPolicy.NoOrder*'
	POWERCCL_NATIVE=$(abspath build/test/stage) $(BIN)/python -m pytest -m slow tests/e2e
	POWERCCL_NATIVE=$(abspath build/test/stage) $(BIN)/python tests/support/busy_host.py \
	  $(BIN)/python -m pytest $(TOGETHER) -m "not slow" tests/e2e

# make wheel    one wheel for all Pythons, with the name of the oldest glibc that it runs on, and its sources, in dist/
wheel: $(VENV)/.build build/deps/.ready
	$(BIN)/python tools/list-requirements.py pyproject.toml wheel > $(VENV)/wheel.txt
	$(LOCKED) $(VENV)/wheel.txt
	rm -rf build/wheelhouse dist
	$(call quietly,$(BIN)/python -m build --no-isolation --outdir build/wheelhouse --sdist --wheel .,wheel)
	$(call quietly,$(BIN)/auditwheel repair --wheel-dir dist build/wheelhouse/*.whl,auditwheel)
	cp build/wheelhouse/*.tar.gz dist

# make wheel-arm64    the wheel for AArch64, cross-compiled into build/arm64/dist; needs g++-aarch64-linux-gnu, mmdebstrap and qemu-user-static
# make test-arm64     the same, and by qemu-user the native tests and two recorded jobs, in half an hour, into build/figures/arm.json
ARM64 = build/arm64
TOOLCHAIN = $(abspath cmake/Aarch64.cmake)
$(ARM64)/root/.ready: tools/fetch-arm64
	tools/fetch-arm64 $(ARM64)/root
	touch $@

$(ARM64)/test/.configured: setup $(ARM64)/root/.ready
	$(call quietly,cmake -S . -B $(ARM64)/test -G Ninja --toolchain $(TOOLCHAIN) -DPython3_EXECUTABLE=$(BIN)/python -DPOWERCCL_TESTS=ON $(QUICK),cmake)
	touch $@

# The wheel packs what the tests are built beside.
wheel-arm64: $(ARM64)/test/.configured
	$(BIN)/python tools/list-requirements.py pyproject.toml wheel > $(VENV)/wheel.txt
	$(LOCKED) $(VENV)/wheel.txt
	cmake --build $(ARM64)/test --parallel $(JOBS)
	rm -rf $(ARM64)/wheelhouse $(ARM64)/dist
	$(call quietly,CMAKE_TOOLCHAIN_FILE=$(TOOLCHAIN) _PYTHON_HOST_PLATFORM=linux-aarch64 $(BIN)/python -m build --no-isolation --outdir $(ARM64)/wheelhouse --wheel -Cbuild-dir=$(ARM64)/test .,wheel)
	$(call quietly,$(BIN)/auditwheel repair --wheel-dir $(ARM64)/dist $(ARM64)/wheelhouse/*.whl,auditwheel)

test-arm64: wheel-arm64
	$(BIN)/python evidence/scripts/figures-arm.py --wheel $(ARM64)/dist/*.whl --jobs $(JOBS) --out build/figures/arm.json

# make check-wheel    the wheel installed as users do, a command recorded with it, and the demo
check-wheel: wheel
	PYTHON=$(PYTHON) tools/check-wheel dist/*.whl build/check-wheel

clean:
	rm -rf build dist
