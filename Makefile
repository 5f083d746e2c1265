# Each target makes .venv by itself when it is missing. `make run ARGS="--seq-len 1024 --steps 2-7"` passes arguments,
# and `make test ARGS="tests/core -k ladder"` runs some tests only.

PYTHON ?= python3
ARGS ?=
PY := .venv/bin/python
# As root, in a container say, Jupyter starts only if it is told that this is meant.
LAB = $(PY) -m jupyterlab $(if $(filter 0,$(shell id -u)),--allow-root) --ServerApp.root_dir=$(CURDIR) $\
	--ContentsManager.pre_save_hook=tutorial_lib.notebooks.keep_language

.PHONY: run test test-all test-gpu check-gpu sanitize newest learn lab notebooks html report lint clean

run: .venv/ready
	$(PY) -m steps.run $(or $(ARGS),--seq-len 4096)

# Of big matrices of cases a core and one in twenty, others at every commit (tests/selection.py); test-all runs everything.
# Three at a time on two cores, as some tests wait.
test: .venv/ready
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pytest -m "not gpu" -n 3 --dist worksteal $(ARGS)

test-all: .venv/ready
	$(PY) -m pytest -m "not gpu" -n 3 --dist worksteal --selection all $(ARGS)

# What breaks with the newest versions of everything, in .newest; ARGS=tests/core asks one folder of tests alone.
newest: .venv/ready
	$(PY) -m tests.newest $(ARGS)

# The GPU tests; fails, instead of skipping them all, where there is no GPU.
test-gpu: .venv/ready
	@$(PY) -c "import sys, tutorial_lib.hardware as h; sys.exit(h.why_no_gpu())"
	$(PY) -m pytest -m gpu $(ARGS)

# Twelve problems of results/, whose steps must be right and as far ahead of PyTorch's as recorded; at most 150 s on an
# H100. On a machine whose own Python has PyTorch and the compilers, `make check-gpu PY=python3` installs nothing.
check-gpu: $(if $(filter .venv/%,$(PY)),.venv/ready)
	$(PY) -m steps.check_gpu $(ARGS)

# Memory errors, and races between warps, at ragged shapes; compute-sanitizer comes with the CUDA toolkit. HANDOVER is
# small because racecheck takes every number that is handed over for a hazard (steps/races.py). AHEAD has more tiles of
# queries than an H100 has SMs, so that some blocks have a next tile.
RAGGED := {"batch": 1, "heads": 2, "kv_heads": 1, "seq_len_q": 100, "seq_len_kv": 150, "head_dim": 128, "causal": true}
NARROW := {"batch": 1, "heads": 2, "seq_len_q": 400, "seq_len_kv": 400, "head_dim": 64, "causal": true}
BROAD := {"batch": 1, "heads": 2, "seq_len_q": 300, "seq_len_kv": 300, "head_dim": 256, "causal": true}
HANDOVER := {"batch": 1, "heads": 1, "seq_len_q": 140, "seq_len_kv": 140, "head_dim": 256, "causal": true}
AHEAD := {"batch": 1, "heads": 9, "seq_len_q": 2100, "seq_len_kv": 300, "head_dim": 128, "causal": true}
BETWEEN := {"batch": 1, "heads": 2, "seq_len_q": 300, "seq_len_kv": 300, "head_dim": 80, "causal": true}
WIDE := {"batch": 1, "heads": 1, "seq_len_q": 70, "seq_len_kv": 200, "head_dim": 512}
DECODING := {"batch": 2, "heads": 8, "kv_heads": 2, "seq_len_q": 3, "seq_len_kv": 1500, "head_dim": 128}
SPARE := {"batch": 1, "heads": 40, "seq_len_q": 200, "seq_len_kv": 800, "head_dim": 128, "causal": false}
WHOLE := {"batch": 1, "heads": 2, "seq_len_q": 400, "seq_len_kv": 512, "head_dim": 64, "causal": false}
PAGES := {"batch": 3, "heads": 8, "kv_heads": 2, "seq_len_q": 3, "seq_len_kv": 1500, "head_dim": 128, "causal": true, "page_size": 16}
HOPPER_BACKWARD := 500-508,cta_per_query_head,k_registers,tma_zero_fill,dependent_launch,$\
newest_first,deferred_fence,unordered_softmax,delta_accumulator,dq_writer_warp,two_dq_writers
BACKWARD := 402-405,ordered_atomics,folded_lse,mask_loops,preprocess_kernel,$(HOPPER_BACKWARD)
SPARED := 505-507,cta_per_query_head,k_registers,tma_zero_fill,dependent_launch,newest_first,deferred_fence
SANITIZE := compute-sanitizer --error-exitcode 1
sanitize: .venv/ready
	$(SANITIZE) --tool memcheck $(PY) -m steps.once 8-11,static_scheduler,l2_aware,autotuned,intra_tile_overlap,gluon,hopper '$(RAGGED)'
	$(SANITIZE) --tool racecheck $(PY) -m steps.once gluon,deferred_sum,wgmma '$(RAGGED)'
	$(PY) -m steps.races 201-206,row_max_ilp_multicast,no_redundant_barriers,ping_pong,hopper_deferred_sum,reverse_kv_order '$(RAGGED)'
	$(SANITIZE) --tool memcheck $(PY) -m steps.once three_warpgroups_unordered,205,206,row_max_ilp,row_max_ilp_multicast,pv_wait_after_softmax,hopper_deferred_sum '$(NARROW)'
	$(PY) -m steps.races three_warpgroups_unordered,205,206,row_max_ilp,row_max_ilp_multicast,pv_wait_after_softmax,hopper_deferred_sum '$(NARROW)'
	$(SANITIZE) --tool memcheck $(PY) -m steps.once 205,206,row_max_ilp,row_max_ilp_multicast,half_output,half_query,pv_wait_after_softmax,reverse_kv_order '$(BROAD)'
	$(PY) -m steps.races 205,206,row_max_ilp,row_max_ilp_multicast,half_output,half_query,pv_wait_after_softmax,reverse_kv_order '$(BROAD)'
	$(SANITIZE) --tool memcheck $(PY) -m steps.once quarter_q_registers,next_softmax_first '$(AHEAD)'
	$(PY) -m steps.races quarter_q_registers,next_softmax_first '$(AHEAD)'
	$(SANITIZE) --tool memcheck $(PY) -m steps.once split_head_dim '$(BETWEEN)'
	$(PY) -m steps.races kv_multicast,split_head_dim '$(BETWEEN)'
	$(SANITIZE) --tool memcheck $(PY) -m steps.once group_rows,split_kv,last_block_merges '$(DECODING)'
	$(SANITIZE) --tool memcheck $(PY) -m steps.once paged '$(PAGES)'
	$(SANITIZE) --tool memcheck $(PY) -m steps.once $(BACKWARD) '$(RAGGED)'
	$(SANITIZE) --tool memcheck $(PY) -m steps.once $(BACKWARD) '$(NARROW)'
	$(SANITIZE) --tool memcheck $(PY) -m steps.once $(BACKWARD) '$(BROAD)'
	$(SANITIZE) --tool memcheck $(PY) -m steps.once $(SPARED) '$(SPARE)'
	$(PY) -m steps.races $(SPARED) '$(SPARE)'
	$(SANITIZE) --tool memcheck $(PY) -m steps.once deferred_reduce_add '$(WHOLE)'
	$(PY) -m steps.races deferred_reduce_add '$(WHOLE)'
	$(PY) -m steps.races $(HOPPER_BACKWARD) '$(RAGGED)'
	$(PY) -m steps.races $(HOPPER_BACKWARD) '$(NARROW)'
	$(PY) -m steps.races $(HOPPER_BACKWARD) '$(HANDOVER)'
	$(SANITIZE) --tool memcheck $(PY) -m steps.once head_dim_tiling '$(WIDE)'
	$(SANITIZE) --tool racecheck $(PY) -m steps.once head_dim_tiling '$(WIDE)'

# Your own copy of the course, in learn/, with what you have answered so far.
learn: .venv/ready
	$(PY) -m steps.learn
	$(LAB) learn/000_start_here.ipynb

# JupyterLab keeps its token: open the address that it prints.
lab: .venv/ready
	$(LAB) notebooks/000_start_here.ipynb

# Executes every notebook again, from its source in notebooks/source/.
notebooks: .venv/ready
	$(PY) -m tutorial_lib.notebooks
	$(PY) -m steps.chapters

# The series as static pages in html/, which need no network.
html: .venv/ready
	$(PY) -m tutorial_lib.notebooks --html html

# Draws every recorded report again, and the README's table; results/ladder.md tells the whole ladder in one.
report: .venv/ready
	$(PY) -m steps.report
	$(PY) -m steps.layouts
	$(PY) -m steps.chapters

lint: .venv/ready
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

.venv/ready: requirements.txt
	$(PYTHON) -c "import sys; sys.exit(None if sys.version_info >= (3, 11) else 'Python 3.11 or newer is needed: make PYTHON=python3.12')"
	$(PYTHON) -m venv .venv
	@echo "Installing into .venv, once: it takes about 3 minutes and 6.5 GB."
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

clean:
	rm -rf .venv .newest .pytest_cache .ruff_cache
