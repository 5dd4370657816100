# Every command sets up what it needs. `make` alone lists the commands.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
# Exactly what requirements/*.txt name, checked by hash, and the checkout itself on top of it.
LOCKED := $(PIP) --no-deps --require-hashes
CHECKOUT := $(PIP) --no-deps --no-build-isolation -e .
STAMP := $(VENV)/.stamps
JOB ?= jobs/h100_38h.yaml
# One more than there are cores: a test that waits for a process of its own leaves a core idle.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
BINDIR ?= $(HOME)/.local/bin

.DEFAULT_GOAL := help
unexport PYTHON  # run.sh has a meaning of its own for it
.PHONY: help demo test walk check fmt bench docs gpu-suite install lock clean where

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-8s %s\n", $$1, $$2}'

$(STAMP)/venv:
	@$(PYTHON) -c 'import sys; sys.exit("autotune needs Python 3.11 or later, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMP) && touch $@

$(STAMP)/product: $(STAMP)/venv pyproject.toml requirements/product.txt
	$(LOCKED) -r requirements/product.txt
	$(CHECKOUT)
	@touch $@

# torch alone has no hash: it is another file for every accelerator, and brings its own libraries.
$(STAMP)/tests: $(STAMP)/product requirements/test.txt constraints.txt
	$(LOCKED) -r requirements/test.txt
	$(PIP) -c constraints.txt torch
	@touch $@

demo: $(STAMP)/product  ## set up and answer the main question for jobs/h100_38h.yaml (no GPU needed)
	$(BIN)/autotune tune $(JOB) || test $$? -eq 4  # 4: an answer, but a limit of the job is missed
	@$(MAKE) --no-print-directory --silent where

test: $(STAMP)/tests  ## set up and run all the tests, in up to four processes; WORKERS=0: in one
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder
	@$(MAKE) --no-print-directory --silent where

install: $(STAMP)/product  ## put `autotune` into BINDIR (~/.local/bin), so that every shell finds it
	@mkdir -p "$(BINDIR)" && ln -sf "$(CURDIR)/$(BIN)/autotune" "$(BINDIR)/autotune"
	@echo "$(BINDIR)/autotune -> $(CURDIR)/$(BIN)/autotune"
	@case ":$$PATH:" in *":$(BINDIR):"*) ;; *) echo "this shell does not look there yet: export PATH=\"$(BINDIR):\$$PATH\"" ;; esac

where:
	@if [ "$$(command -v autotune 2>/dev/null)" -ef "$(BIN)/autotune" ]; then :; else \
	  printf '\nTo type `autotune` in this shell: source %s/bin/activate   (in every shell: make install)\n' "$(VENV)"; fi

walk: $(STAMP)/tests  ## type the product's own commands in a new folder; FAULT=NAME or all puts a defect back
	$(BIN)/python -m bench.walk $(if $(FAULT),--fault '$(FAULT)')

check: $(STAMP)/tests  ## lint, types, import contracts, generated documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m bench.readme --check
	$(BIN)/python -m bench.twenty_jobs --check

fmt: $(STAMP)/tests  ## format the code
	$(BIN)/ruff check --fix-only --quiet . ; $(BIN)/ruff format .

bench: $(STAMP)/tests  ## print speed and accuracy
	$(BIN)/python -m bench.speed
	$(BIN)/python -m bench.accuracy

docs: $(STAMP)/tests  ## write the generated parts of README.md and docs
	$(BIN)/python -m bench.readme
	$(BIN)/python -m bench.twenty_jobs

gpu-suite: $(STAMP)/tests  ## measure on the GPU at hand, eight minutes a call; again until nothing is left
	$(BIN)/python -m bench.gpu_suite

.PHONY: llamafactory-fixture
FACTORY := .venv-llamafactory

# Text alone is trained: an empty torchaudio is enough, and a CUDA build of it would not load.
llamafactory-fixture:  ## train with LLaMA-Factory, in an environment of its own, and keep what it wrote
	$(PYTHON) -m venv $(FACTORY)
	$(FACTORY)/bin/pip install --quiet torch==2.13.0
	$(FACTORY)/bin/pip install --quiet torch==2.13.0 llamafactory==0.9.5
	$(FACTORY)/bin/pip uninstall --quiet --yes torchvision torchaudio
	: > $$($(FACTORY)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torchaudio.py
	OMP_NUM_THREADS=1 $(FACTORY)/bin/python tests/learn/make_llamafactory.py

# A lock file for Python 3.11 and later on every platform. What torch brings is left to torch.
LOCK := .venv-lock
COMPILE := $(LOCK)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-header --no-annotate -c constraints.txt --no-emit-package torch --no-emit-package triton \
	$(addprefix --no-emit-package ,cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas \
	nvidia-cuda-cupti nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft \
	nvidia-cufile nvidia-curand nvidia-cusolver nvidia-cusparse nvidia-cusparselt-cu13 \
	nvidia-nccl-cu13 nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx)
TEST_EXTRAS := $(addprefix --extra ,dataset loggers postgres probe ray redis test)

lock:  ## resolve the dependencies anew, and write requirements/*.txt with their hashes
	$(PYTHON) -m venv $(LOCK)
	$(LOCK)/bin/pip install --quiet uv==0.13.9
	$(COMPILE) $(UPGRADE) pyproject.toml requirements/build.in $(TEST_EXTRAS) -o requirements/test.txt
	$(COMPILE) $(UPGRADE) -c requirements/test.txt pyproject.toml requirements/build.in --extra dataset -o requirements/product.txt

clean:  ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info

.PHONY: parsers
PARSERS := skypilot==0.14.1 dstack==0.22.5 kubernetes-validate==1.37.0 kubeflow-training==1.9.4

# Of a trainer only what its parser imports; torch, transformers, TRL and so on are those of the tests.
OMEGACONF := omegaconf==2.3.0 antlr4-python3-runtime==4.9.3
PARSER_torchtune := torchtune==0.6.1 torchao==0.10.0 $(OMEGACONF) sentencepiece==0.2.3 \
	tiktoken==0.14.0 blobfile==3.3.0 kagglehub==1.0.3 pillow==13.0.0 bitsandbytes==0.50.2
PARSER_litgpt := litgpt==0.5.12 jsonargparse==4.53.0 typeshed-client==2.14.0 \
	docstring-parser==0.18.0 lightning==2.6.6 lightning-utilities==0.15.3 torchmetrics==1.9.0
PARSER_llamafactory := llamafactory==0.9.5 $(OMEGACONF)
PARSER_axolotl := axolotl==0.19.0 addict==2.4.0 pillow==13.0.0 mistral-common==1.13.1
TRAINER_PARSERS := $(addprefix parser-,torchtune litgpt llamafactory axolotl)
.PHONY: $(TRAINER_PARSERS)

parsers: $(TRAINER_PARSERS)  ## install the real parsers of what is exported and of the trainers, each in an environment of its own
	@set -e; for each in $(PARSERS); do name=$${each%%==*}; \
	  [ -x .venv-$$name/bin/python ] || $(PYTHON) -m venv .venv-$$name; \
	  .venv-$$name/bin/python -m pip install --quiet --disable-pip-version-check "$$each"; done
	[ -x .venv-trl/bin/python ] || $(PYTHON) -m venv .venv-trl
	.venv-trl/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	.venv-trl/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt trl peft

$(TRAINER_PARSERS): parser-%: $(STAMP)/tests
	[ -x .venv-$*/bin/python ] || $(BIN)/python -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(PARSER_$*)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$(.venv-$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/of_the_tests.pth"
