# `make help` lists the targets. Everything lives in .venv. It is made once, and again when a pyproject.toml,
# constraints.txt or a kernel's source changes.

PYTHON ?= $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
TORCH_INDEX ?=
DEMO_MINUTES ?= 5
DEMO_OUT ?= runs/demo
MINUTES ?= 30
SEED ?= 1
TESTS ?= tests
TRITONS ?= 3.8.0 3.9.0
ONE_IN ?=

BIN := .venv/bin
KERNELS := $(wildcard src/relattn/backends/cpu/kernels/*)
STAMP := .venv/installed
TORCH := $(shell grep '^torch==' constraints.txt)
WORKERS := -n logical --maxprocesses 4 --dist worksteal
PYTEST := $(BIN)/python -m pytest $(WORKERS)
SANITIZED := build/sanitized
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=all -g -O1
FAST := not (slow or triton or ptx or gpu or site or wrappers)
WHOLE := not (triton or ptx or gpu or site or wrappers)
SUITE := tests/native/cpp/suite.cpp
SUITE_FLAGS := -std=c++17 -O1 -Isrc/relattn/backends/cpu/kernels
ZIG := $(abspath $(BIN))/python -I -m ziglang
ARM := aarch64-linux-gnu.2.17
ARM_LIBC := /usr/aarch64-linux-gnu
WHEELS := build/wheels
BARE := build/bare
RELEASE := build/release

.PHONY: help install test test-lab test-hf test-keras test-triton test-all test-ptx test-tritons test-gpu test-site test-wrappers test-sanitize test-arm test-versions test-hf-versions release-check wheels search mutants lint lint-python lint-kernels docs demo player clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18
	@echo
	@echo "  PYTHON=python3.12      the interpreter that makes .venv (3.11 or later; default: $(PYTHON))"
	@echo "  TORCH_INDEX=URL        where torch comes from, e.g. https://download.pytorch.org/whl/cpu (default: pip's own index)"
	@echo "  DEMO_MINUTES=M         how long the demo trains (default: $(DEMO_MINUTES))"
	@echo "  DEMO_OUT=DIR           where the demo writes (default: $(DEMO_OUT))"
	@echo "  MINUTES=M              how long the search lasts (default: $(MINUTES))"
	@echo "  SEED=N                 which mutants are drawn (default: $(SEED))"
	@echo "  TESTS=PATH             the tests that search runs (default: $(TESTS))"
	@echo "  TRITONS=VERSIONS       what test-tritons tries (default: $(TRITONS))"
	@echo "  ONE_IN=N               test-all and test-tritons run one test in N of each file (default: every one)"

install: $(STAMP) ## set up .venv with everything that the other targets need

# First pip, because older ones have no --group. Then torch, alone and by its exact version: an index for torch may not
# have the other packages.
$(STAMP): pyproject.toml lab/pyproject.toml constraints.txt setup.py $(KERNELS)
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"relattn needs Python 3.11 or later; $(PYTHON) is {v[0]}.{v[1]}: name another with make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt pip
	$(BIN)/python -m pip install --quiet --no-deps $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[keras]' --editable ./lab --group test --group lint
	touch $@

test: install ## the core's tests and a share of the others', without the slow ones
	$(PYTEST) -m '$(FAST)'

test-lab: install ## the lab's tests, whole
	$(PYTEST) -m '$(WHOLE)' tests/lab

test-hf: install ## the tests of relattn.hf and of the models of transformers, whole
	$(PYTEST) -m '$(WHOLE)' tests/hf tests/peers

test-keras: install ## the tests of relattn.keras, whole: on torch, TensorFlow and JAX
	$(PYTEST) -m '$(WHOLE)' tests/keras

test-triton: install ## the tests of the Triton kernels, whole but for test-ptx: in Triton's interpreter, and compiled
	TRITON_INTERPRET=1 $(PYTEST) -m triton tests/triton
	$(PYTEST) -m '$(WHOLE)' tests/triton
	$(PYTEST) -m 'ptx and not slow' tests/triton/ptx

test-all test-tritons: export RELATTN_ONE_IN = $(ONE_IN)
test-all: install ## the slow tests; the Triton kernels in Triton's interpreter, and a part of test-ptx
	$(PYTEST) -m 'slow and not ptx'
	TRITON_INTERPRET=1 $(PYTEST) -m triton tests/triton
	$(PYTEST) -m 'ptx and not slow' tests/triton/ptx

test-ptx: install ## the Triton kernels as compiled for a GPU, run by an emulator on the CPU
	$(PYTEST) -m ptx tests/triton/ptx

# The interpreter, compiled kernels, and the part of test-ptx that is not slow.
test-tritons: install ## tests/triton under other versions of Triton, each in an environment of its own
	@for version in $(TRITONS); do \
		echo "Triton $$version"; \
		test -d build/triton-$$version || $(BIN)/python -m pip install --quiet --no-deps --target build/triton-$$version triton==$$version || exit 1; \
		export PYTHONPATH=build/triton-$$version; \
		TRITON_INTERPRET=1 $(PYTEST) -m triton tests/triton || exit 1; \
		$(PYTEST) -m 'not (triton or ptx or gpu)' tests/triton || exit 1; \
		$(PYTEST) -m 'ptx and not slow' tests/triton/ptx || exit 1; \
	done

test-gpu: install ## the tests that need a CUDA GPU
	@$(BIN)/python -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else f"make test-gpu needs a CUDA GPU; torch {torch.__version__} finds none here")'
	$(BIN)/python -m pytest -m gpu tests/triton

test-site: docs ## the site of `make docs`, in Chromium
	@type chromium chromedriver >/dev/null 2>&1 || { echo 'make $@ needs Chromium and its driver: apt-get install chromium chromium-driver'; exit 1; }
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group site-test
	$(BIN)/python -m pytest -m site tests/site

test-wrappers: install ## layers and models under adapters, quantization and offloading
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group wrappers
	$(PYTEST) -m wrappers tests/wrappers

# In a copy, so that the kernels beside the sources stay as they are. Python itself leaks, so leaks are not checked. -s:
# the sanitizers end the process, and pytest would lose the output that it holds back.
test-sanitize: install ## the kernels under the address and undefined-behaviour sanitizers of GCC
	rm -rf $(SANITIZED)
	mkdir -p $(SANITIZED)
	cp -r src tests setup.py pyproject.toml README.md LICENSE MANIFEST.in $(SANITIZED)
	rm -f $(SANITIZED)/src/relattn/backends/cpu/_kernels.*
	cd $(SANITIZED) && CFLAGS='$(SANITIZE)' CXXFLAGS='$(SANITIZE)' LDFLAGS='$(SANITIZE)' $(CURDIR)/$(BIN)/python setup.py -q build_ext --inplace
	grep -q __asan_ $(SANITIZED)/src/relattn/backends/cpu/_kernels.so
	g++ -std=c++17 $(SANITIZE) -Isrc/relattn/backends/cpu/kernels tests/native/cpp/overrun.cpp -o $(SANITIZED)/overrun
	! $(SANITIZED)/overrun 2> $(SANITIZED)/said
	grep use-after-poison $(SANITIZED)/said
	cd $(SANITIZED) && PYTHONPATH=src LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
		$(CURDIR)/$(BIN)/python -m pytest -s -p no:cacheprovider $(addprefix tests/native/test_,contract.py explicit_positions.py derivatives.py padding.py callers.py rotation.py axes.py visible_blocks.py) -k 'not blocks_that_it_chooses'

# A C++ program calls the wheel's own library: no Python and no torch run there. The first time, zig compiles its C++
# library. This takes some minutes.
test-arm: install ## the kernels for ARM (aarch64), compiled by zig and run by qemu; one thread
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group wheels
	@type qemu-aarch64 >/dev/null 2>&1 && test -d $(ARM_LIBC) || { echo 'make $@ needs qemu and a C library for ARM: apt-get install qemu-user libc6-arm64-cross'; exit 1; }
	rm -rf $(WHEELS)/arm
	_PYTHON_HOST_PLATFORM=linux-aarch64 CC='$(ZIG) cc -target $(ARM)' CXX='$(ZIG) c++ -target $(ARM)' LDFLAGS=-Wl,-s $(BIN)/python -m build --outdir $(WHEELS)/arm .
	$(BIN)/python -m zipfile -e $(WHEELS)/arm/*.whl $(WHEELS)/arm/unpacked
	$(ZIG) c++ -target $(ARM) $(SUITE_FLAGS) $(SUITE) -ldl -o $(WHEELS)/arm/suite
	qemu-aarch64 -L $(ARM_LIBC) $(WHEELS)/arm/suite $(WHEELS)/arm/unpacked/relattn/backends/cpu/_kernels.so

# Both are built from the source distribution. The one for x86-64 is tested in an environment with torch and nothing
# else.
wheels: test-arm ## manylinux wheels for x86-64 and ARM, the source distribution, tested, and the lab's, in dist/
	rm -rf $(WHEELS)/x86 $(BARE) dist
	LDFLAGS=-Wl,-s $(BIN)/python -m build --outdir $(WHEELS)/x86 .
	PATH="$(abspath $(BIN)):$$PATH" auditwheel repair --wheel-dir dist $(WHEELS)/x86/*.whl
	PATH="$(abspath $(BIN)):$$PATH" auditwheel repair --wheel-dir dist $(WHEELS)/arm/*.whl
	cp $(WHEELS)/x86/*.tar.gz dist
	@ls dist/*manylinux_2_27_x86_64*.whl dist/*manylinux_2_17_aarch64*.whl
	@for wheel in dist/*.whl; do $(BIN)/auditwheel show $$wheel || exit 1; done
	$(BIN)/python -m build --outdir dist lab
	$(PYTHON) -m venv $(BARE)
	$(BARE)/bin/python -m pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(BARE)/bin/python -m pip install --quiet --constraint constraints.txt "$$(ls dist/*_x86_64.whl)[cli]"
	cd / && $(abspath $(BARE))/bin/python -I $(CURDIR)/tests/native/from_a_wheel.py
	cd / && $(abspath $(BARE))/bin/python -I $(CURDIR)/tests/documents/first_screen.py $(CURDIR)/README.md
	cd / && $(abspath $(BARE))/bin/relattn doctor
	@ls -l dist

test-versions: install ## the core's tests under other versions of Python and torch (versions.toml), into docs/versions.md
	TORCH_INDEX='$(TORCH_INDEX)' $(BIN)/python -m tests.versions

test-hf-versions: install ## the tests of relattn.hf under other versions of transformers (hf_versions.toml), into docs/hf.md
	$(BIN)/python -m tests.hf_versions

# Checks what an index asks of a package, and runs the tests from the unpacked source distribution, in a separate
# environment. Two of pyroma's ten points are for an address and an e-mail; the project has neither.
release-check: install ## the packages as they would be published: their metadata, files and tests, the workflow files
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group release
	rm -rf $(RELEASE)
	$(BIN)/python -m build --outdir $(RELEASE) .
	$(BIN)/python -m build --outdir $(RELEASE)/lab lab
	$(BIN)/twine check --strict $(RELEASE)/*.* $(RELEASE)/lab/*
	$(BIN)/check-wheel-contents $(RELEASE)/*.whl $(RELEASE)/lab/*.whl
	$(BIN)/pyroma --min 8 $(RELEASE)/*.tar.gz
	$(BIN)/pyroma --min 8 $(RELEASE)/lab/*.tar.gz
	$(BIN)/actionlint
	mkdir $(RELEASE)/unpacked
	tar -xzf $(RELEASE)/*.tar.gz --strip-components 1 -C $(RELEASE)/unpacked
	$(MAKE) -C $(RELEASE)/unpacked test

search: install ## the tests with new random numbers, again and again for MINUTES
	$(BIN)/python -m tests.search --minutes $(MINUTES) $(WORKERS) -m '$(FAST)' $(TESTS)

mutants: install ## 60 mutants of the core: which of them do the tests of `make test` kill?
	$(BIN)/python -m tests.mutants --seed $(SEED)

lint: lint-python lint-kernels ## ruff and pyright, and for the kernels clang-format and clang-tidy; side by side with make -j2

lint-python: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

lint-kernels: install
	$(BIN)/clang-format --dry-run -Werror $(filter %.h %.cpp,$(KERNELS)) $(wildcard tests/native/cpp/*)
	$(BIN)/clang-tidy --quiet $(filter %.cpp,$(KERNELS)) -- -std=c++17 -DRELATTN_SET=generic -DRELATTN_SOURCES='""'
	$(BIN)/clang-tidy --quiet $(filter %/kernels.cpp,$(KERNELS)) -- -std=c++17 -march=x86-64-v3 -DRELATTN_SET=avx2
	$(BIN)/clang-tidy --quiet $(SUITE) -- $(SUITE_FLAGS)

# The variable stops a notice of the theme about other programs.
docs: install ## the documentation as a site, in site/; a dead link fails
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Goes on with a demo that was interrupted, and shows again one that was finished.
demo: install ## hear the model that comes with the lab, then train and compare encodings on Bach chorales, then compose
	$(BIN)/relattn-lab compose --out $(DEMO_OUT)/first
	@echo
	$(BIN)/relattn-lab compare --out $(DEMO_OUT)/compare --minutes $(DEMO_MINUTES) --at-least $(if $(wildcard $(DEMO_OUT)/compare/settings.json),--resume)
	$(BIN)/relattn-lab compose --checkpoint $(DEMO_OUT)/compare/runs/relative-heads-seed0/model --out $(DEMO_OUT)/second
	@echo
	@echo 'Done. Open in a browser, a MIDI player and a picture viewer:'
	@ls $(DEMO_OUT)/first/* $(DEMO_OUT)/compare/report.html $(DEMO_OUT)/second/*

# Committed, so that who installs the lab needs nothing of npm.
player: ## bundle the player of the music pages (needs npm)
	@type npm >/dev/null 2>&1 || { echo 'make $@ needs Node.js and npm: apt-get install nodejs npm'; exit 1; }
	cd lab/player && npm ci --no-audit --no-fund && npm run build

clean: ## remove .venv, caches and build outputs (keeps runs/)
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build dist site src/*.egg-info lab/src/*.egg-info lab/build
	find src lab tests ptxemu measure -name __pycache__ -type d -prune -exec rm -rf {} +
