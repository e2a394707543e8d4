# The one entry for people and for CI; `make help` lists the targets. Longer steps are in tools/.
# CI sets CI=true, which turns incremental compilation off; nothing else differs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)
export CARGO_BUILD_JOBS ?= $(shell nproc)
export CARGO_TERM_COLOR ?= auto
ifdef CI
export CARGO_INCREMENTAL := 0
endif

# The crash test: how many kills, and the seed that a failure prints.
KILLS ?= 1000
# Of each crash test with messages behind GPU work, on the test driver: with subscribers in one domain and in two.
GPU_KILLS ?= 60
SEED ?= 1
# `make test` runs a shorter one.
TEST_KILLS ?= 200

# Where `make install` puts what was built.
PREFIX ?= /usr/local
DESTDIR ?=

# The extension module is built and tested by maturin and pytest, not by cargo test.
# The crash test is built apart: its hooks must not get into anybody else's libraries.
RUST_TESTS := --workspace --exclude rgaps-python --exclude rgaps-chaos
# What is shipped, without the test programs.
PRODUCTS := -p rgapsd -p rgaps-cli -p rgaps-capi -p rgaps-interpose
LINKS := -p rgaps-links
TEST_DRIVER := -p rgaps-test-driver
# What runs unoptimised: in virtual machines, on hosts in namespaces, and from the documents.
export DEBUG_PROGRAMS := -p rgaps -p rgapsd -p rgaps-cli -p rgaps-interpose $(LINKS) $(TEST_DRIVER)
# Test programs and examples that virtual machines run.
VM_PROGRAMS := $(RUST_TESTS)
# The crash test, and the examples that try verbs and RDMA that kernels post.
CHAOS := $(TEST_DRIVER) -p rgaps-chaos --bin rgaps-chaos
VERBS_CHECKS := $(TEST_DRIVER) -p rgaps-gpu-verbs --example gpu-verbs-check -p rgaps-verbs --features rgaps-verbs/raw --example verbs-check
# What programs and libraries are built as: `release`, or `debug`. Scripts look for them in the folder of that name.
export PROFILE ?= release
# `make test`, which sets WHOLE, builds all once, as `debug` (decision 0053). All its steps name the same packages: cargo chooses the
# features of dependencies for all packages that are named together, and would build much once more. So the hooks of the crash test are
# in everything there but the wheel.
ifdef WHOLE
PROFILE := debug
RUST_TESTS := --workspace --exclude rgaps-python
DEBUG_PROGRAMS := $(RUST_TESTS) --lib --bins --examples --tests
PRODUCTS := $(DEBUG_PROGRAMS)
LINKS := $(DEBUG_PROGRAMS)
TEST_DRIVER := $(DEBUG_PROGRAMS)
VM_PROGRAMS := $(DEBUG_PROGRAMS)
CHAOS := $(DEBUG_PROGRAMS)
VERBS_CHECKS := $(DEBUG_PROGRAMS)
# The build is clippy's, too: it checks what it compiles, and a warning ends the build. `cargo clippy` would check all dependencies once more.
export RUSTC_WORKSPACE_WRAPPER := clippy-driver
export CLIPPY_ARGS := -D__CLIPPY_HACKERY__warnings
# Turing, Ampere, Hopper and Blackwell. The targets alone compile for all that nvcc knows.
ARCHITECTURES := 75 80 90 120
else
# Steps of their own there.
DEVICE_CODE := device-code
VERBS_CODE := verbs-code
endif
# What cargo calls it.
CARGO_PROFILE = $(if $(filter debug,$(PROFILE)),dev,$(PROFILE))
# Test programs run under a limit of time, and once more when they fail (tools/run-test.sh).
RUNNER = --config 'target."cfg(all())".runner="$(CURDIR)/tools/run-test.sh"'
LOOM := --config 'target."cfg(all())".rustflags=["--cfg","loom"]' --target-dir target/loom

.PHONY: help build links links-many test steady test-driver demo demo-hosts demo-kv demo-kv-rdma demo-rdma demo-record demo-remote test-remote check unit loom python wheel c-test chaos soak races kernel test-kernel test-kernel-debug test-providers test-rdma test-rdma-lossy test-rdma-kills test-netem test-device demo-device vm-programs vm-shell sim fuzz bench bench-rdma bench-dmaplane plots docs docs-test miri asan tsan aarch64 install uninstall dist clean setup test-gpu-verbs test-view-page math-calls device-code verbs-code verbs-checks

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 17

setup: ## Install what building and testing need (every other target calls its part of it)
	@tools/setup.sh base rust python aarch64 vm $(if $(WHOLE),docs nvcc numba)

build: ## Release build: target/release/rgaps, rgapsd, the C libraries and rgaps.h, the libraries for CUDA programs
	@tools/setup.sh base rust
	cargo build --profile $(CARGO_PROFILE) --locked $(PRODUCTS)

links: ## Release build of target/release/rgaps-links, for hosts that are linked with others
	@tools/setup.sh base rust
	cargo build --profile $(CARGO_PROFILE) --locked $(LINKS)

# Hosts and topics of `make links-many`, and seconds of nothing afterwards.
HOSTS ?= 10
TOPICS ?= 1000
IDLE_S ?= 20

links-many: links ## Many hosts and topics on this machine, and what idle links use: HOSTS=10 TOPICS=1000 IDLE_S=20
	cargo build --release --locked -p rgapsd
	HOSTS=$(HOSTS) TOPICS=$(TOPICS) IDLE_S=$(IDLE_S) RGAPS_DAEMON=$(CURDIR)/target/release/rgapsd \
	  RGAPS_LINKS_PROGRAM=$(CURDIR)/target/release/rgaps-links \
	  cargo test --locked -p rgaps-links --test many -- --nocapture

test: ## Everything, on a machine without a GPU
	@tools/test.sh

demo: build ## A camera and three Python subscribers, without a copy; results under target/demo
	@LINKS=no tools/wheel.sh
	@tools/demo.sh

demo-hosts: wheel ## The same on two hosts (network namespaces), with the cable pulled for 2 s
	@tools/setup.sh hosts
	@tools/demo-hosts.sh

demo-kv: wheel ## A KV cache from prefill to decode on two hosts, with cables pulled and workers killed; last line is JSON
	@tools/demo-kv.sh $(DEMO_KV)

demo-kv-rdma: wheel ## The same on two virtual machines, over RDMA on Soft-RoCE: few prompts, no figures
	@tools/setup.sh vm
	@tools/kv-model.sh >/dev/null
	@tests/vm/run.py tests/vm/demo-kv.sh
	@cat target/vm/demo-kv/shared/demo-kv/results/demo.txt

demo-rdma: wheel ## The same on two virtual machines, over RDMA on Soft-RoCE
	@tools/setup.sh vm
	@mkdir -p target/demo # the machines put a folder of their own there
	@tests/vm/run.py tests/vm/demo.sh
	@cat target/vm/demo/shared/demo/results/demo.txt

demo-record: build ## The camera recorded, read by two readers, replayed, every frame checked; page and frame side by side; last line is JSON
	@tools/setup.sh chromium
	@LINKS=no tools/wheel.sh
	@.venv/bin/python demo/record.py $(DEMO_RECORD)

demo-remote: ## A CUDA program on a host without a GPU, on the test driver of another: DEMO_REMOTE="--gpu-host 10.0.0.7"; last line is JSON
	@tools/setup.sh base rust hosts
	@tools/demo-remote.sh $(DEMO_REMOTE)

test-remote: ## Small CUDA programs on a server with the test driver, then demo-remote
	@tools/setup.sh base rust hosts
	@SUITE=1 tools/demo-remote.sh

math-calls: ## The table of functions of cuBLAS and others that GPU remoting forwards, from NVIDIA's headers by the rules of tools/math-calls.py
	@tools/setup.sh base math
	tools/math-calls.py table .cache/math/include >target/functions.txt
	@mv target/functions.txt crates/remoting/src/math/functions.txt

check: ## rustfmt, clippy without warnings, packing for crates.io
	@tools/setup.sh base rust
	cargo fmt --all --check
ifndef WHOLE
	cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
	cargo clippy -p rgaps-links --no-default-features --locked --quiet -- -D warnings
endif
	@tools/package.sh

unit: ## Unit, property, integration and command-line tests
	@tools/setup.sh base rust
	@RGAPS_DAEMON=$(CURDIR)/target/debug/rgapsd tools/unit.sh $(RUST_TESTS)
	@[ -n "$(WHOLE)" ] || cargo test --locked $(RUNNER) $(RUST_TESTS) --features rgaps-topic/crash-steps --test crash

steady: ## The unit tests ROUNDS=10 times alone, beside a load, and stopped and continued at random; PACKAGES="-p rgaps-links"
	@tools/setup.sh base rust
	cargo build --locked --quiet -p rgapsd -p rgaps-links
	@ROUNDS="$(ROUNDS)" WAYS="$(WAYS)" PACKAGES="$(PACKAGES)" tools/steady.sh

# Not what `build` compiles: without clippy.
aarch64 loom: export RUSTC_WORKSPACE_WRAPPER :=
loom: ## The rings and holder words under a model checker
	@tools/setup.sh base rust
	cargo test --locked --release $(RUNNER) $(LOOM) -p rgaps-topic --test loom

# The stand-in for CUDA's driver, for the tests that load the built libraries.
test-driver:
	@tools/setup.sh base rust
	cargo build --profile $(CARGO_PROFILE) --locked --quiet $(TEST_DRIVER)

test-view-page: wheel ## The page of rgaps view in headless Chromium (99 MB to download, 303 MB installed); screenshot in target/view/page.png
	@tools/setup.sh chromium
	@tools/pytest.sh -k test_view_page -rs

wheel: build links ## The Python wheel with all programs, in target/wheels and in .venv
	@tools/wheel.sh

python: wheel test-driver ## pytest with that wheel
	@tools/pytest.sh

c-test: build test-driver ## C programs against the header and both libraries
	@tools/c-test.sh

chaos: test-driver ## Kill publishers, subscribers and the daemon: KILLS=1000 GPU_KILLS=60 SEED=1; last line is JSON
	cargo build --profile $(CARGO_PROFILE) --locked --quiet $(CHAOS)
	cargo test --profile $(CARGO_PROFILE) --locked --quiet $(RUNNER) -p rgaps-chaos --bin rgaps-chaos
	@for domains in "cuda" "cuda --across host" "host --across cuda" "cuda --across cuda:1"; do \
	  RGAPS_CUDA_LIBRARY=target/$(PROFILE)/librgaps_test_driver.so RGAPS_TEST_DRIVER_DELAY_US=1500 \
	  RGAPS_TEST_DRIVER_DEVICES=2 RGAPS_TEST_DRIVER_SEED=$(SEED) \
	  target/$(PROFILE)/rgaps-chaos --domain $$domains --kills $(GPU_KILLS) --seed $(SEED) || exit 1; done
	@target/$(PROFILE)/rgaps-chaos --kills $(KILLS) --seed $(SEED)

test-device: build links test-driver $(DEVICE_CODE) ## Device topics: the protocol in a model checker, mutants of it, PTX for every GPU, processes on the test driver
	@tools/device/check.sh

device-code:
	@tools/setup.sh base nvcc numba
	@tools/device/mutants.py --seconds 1
	@tools/device/ptx.py $(ARCHITECTURES)
	@tools/device/tensor.sh check

test-gpu-verbs: verbs-checks $(VERBS_CODE) ## RDMA that kernels post: a model checker, mutants, PTX for every GPU, a software card, TCP and verbs, every byte verified
	@tools/device/rdma.sh

verbs-checks:
	@tools/setup.sh base rust
	cargo build --profile $(CARGO_PROFILE) --locked --quiet $(VERBS_CHECKS)

verbs-code: verbs-checks
	@tools/setup.sh nvcc
	@tools/device/mutants.py --suite rdma --seconds 0.5
	@tools/device/ptx.py --suite rdma $(ARCHITECTURES)

# Seconds and kills of the demo.
DEMO_DEVICE ?= --seconds 10 --kills 40 --seed $(SEED)

demo-device: build ## Kernels (here threads) of three processes that publish, receive and are killed at random; last line is JSON
	@tools/device/build.sh host
	@target/device/check demo $(DEMO_DEVICE)

# How long the soak disturbs hosts and members.
MINUTES ?= 30

soak: ## Hosts and members of every kind, killed, stopped and cut off for MINUTES=30 SEED=1; last line is JSON
	@tools/setup.sh base rust
	cargo build --locked --quiet -p rgaps-soak -p rgapsd -p rgaps-links -p rgaps-cli -p rgaps-python -p rgaps-capi
	$(CC) -std=c11 -D_POSIX_C_SOURCE=200809L -O2 -Wall -Wextra -Wpedantic -Werror -Icrates/capi/include tests/soak/c/member.c \
	  -o target/debug/soak-member-c -Ltarget/debug -l:librgaps.a -lgcc_s -lutil -lrt -lpthread -lm -ldl
	@target/debug/rgaps-soak --minutes $(MINUTES) --seed $(SEED)

races: ## Kernels that write and read late, every byte checked: RACES="--messages 200"; wants a GPU
	@tools/setup.sh base rust
	cargo build --release --locked --quiet -p rgaps-races
	@target/release/rgaps-races $(RACES)

# What the suites run.
vm-programs:
	@tools/setup.sh base rust vm kernel
	cargo build --profile $(CARGO_PROFILE) --locked --quiet $(VERBS_CHECKS)
	@tools/device/build.sh rdma-host
	cargo build --locked --quiet $(DEBUG_PROGRAMS)
	@tools/gpu-libs.py build target/debug/librgaps_gpu.so target/debug/gpu-libs
	@tests/remote/build.sh
	@tests/vm/programs.sh "$(VM_PROGRAMS)" crossing rdma dma_bufs host_memory
	@kernel/build.sh 6.1

test-rdma: vm-programs ## RDMA on Soft-RoCE: tests/vm/suites in two virtual machines with a wire between them; logs in target/vm
	@tests/vm/run.py

test-rdma-lossy: vm-programs ## The same with a wire that loses packets
	@tests/vm/run.py --wire multicast

test-rdma-kills: vm-programs ## 10,000 messages over RDMA, from nothing to 64 MiB, while daemons, links, processes are killed and the cable is out
	@tests/vm/run.py tests/vm/kills.sh

# Debian's kernels that the module is built and tested with.
KERNEL_SERIES ?= 6.1 6.12
# Random kills of `make test-kernel`, for each kernel.
KERNEL_KILLS ?= 300
# Seconds of random calls.
KERNEL_FUZZ_S ?= 60

kernel: ## The kernel module dmaplane, for Debian's kernels: KERNEL_SERIES="6.1 6.12"; target/kernel/SERIES/dmaplane/dmaplane.ko
	@tools/setup.sh base kernel
	@kernel/check.sh
	@kernel/build.sh $(KERNEL_SERIES)

test-kernel: kernel ## Build it by dkms, boot it in QEMU and test it: KERNEL_KILLS=300 KERNEL_FUZZ_S=60 SEED=1 FILTER=buffer; last line is JSON
	@kernel/tests/dkms.sh $(KERNEL_SERIES)
	@KILLS=$(KERNEL_KILLS) FUZZ_S=$(KERNEL_FUZZ_S) SEED=$(SEED) FILTER="$(FILTER)" kernel/tests/run.sh $(KERNEL_SERIES)

test-kernel-debug: ## The same on a kernel with KASAN, lockdep, leak detection, KUnit and kcov, which is built first (20 min of two cores); last line is JSON
	@tools/setup.sh base linux
	@kernel/build.sh 6.12-debug
	@LIMIT_S=3000 KILLS=$(KERNEL_KILLS) FUZZ_S=$(KERNEL_FUZZ_S) SEED=$(SEED) FILTER="$(FILTER)" kernel/tests/run.sh 6.12-debug

# Of Debian's kernels, 6.12 has udmabuf.
test-providers: kernel ## Segments and daemons with each provider of host memory, in a virtual machine: KERNEL_SERIES=6.12; last line is JSON
	@tools/setup.sh base rust vm
	@tests/vm/providers.sh $(KERNEL_SERIES)

test-netem: ## Links between network namespaces over cables that are slow and lose packets, in a virtual machine
	@tools/setup.sh base rust vm
	cargo build --locked --quiet $(DEBUG_PROGRAMS)
	@tests/vm/programs.sh "$(VM_PROGRAMS)" namespaces
	@tests/vm/run.py tests/vm/netem.sh

bench-dmaplane: kernel ## The module's figures beside those of its paper, in a virtual machine: target/vm/dmaplane.json
	@tools/setup.sh base rust vm
	@MEASURE=1 tests/vm/providers.sh 6.12

vm-shell: ## A shell in one of the two virtual machines
	@tools/setup.sh vm
	@tests/vm/run.py --shell

sim: ## Links and routes between hosts in virtual time, with seeded faults: SEEDS=10000
	@tools/setup.sh base rust
	SEEDS=$(SEEDS) cargo test --locked --release -p rgaps-transport --test machine -- --nocapture
	SEEDS=$(SEEDS) cargo test --locked --release -p rgaps-routing -- --nocapture

fuzz: ## What a peer's bytes meet, with libFuzzer: FUZZ_SECONDS=300 for each target
	@tools/fuzz.sh

bench: build ## The figures, as one JSON file under bench/results
	cargo build --release --locked -p rgaps-compare
	@bench/run.sh

bench-rdma: ## Channels and lanes over RDMA beside perftest, on Soft-RoCE: only ratios count; BEFORE=target/release of another build: also in turns with it
	@tools/setup.sh base rust vm
	cargo build --release --locked --quiet -p rgaps-verbs --features raw --example verbs-check
	cargo build --release --locked --quiet -p rgaps-transport --example lane-check
	@tests/vm/run.py tests/vm/figures.sh
	cargo build --release --locked --quiet -p rgapsd -p rgaps-links -p rgaps-cli
	@rm -rf target/before
	@[ -z "$(BEFORE)" ] || install -D -t target/before $(addprefix $(BEFORE)/,rgaps rgapsd rgaps-links)
	@[ -z "$(BEFORE)" ] || install -D -t target/before/examples $(BEFORE)/examples/lane-check
	@tests/vm/run.py tests/vm/bench.sh

plots: ## docs/performance/plots and docs/performance/results.md from bench/results/*.json
	@tools/setup.sh python
	.venv/bin/python tools/plots/draw.py

docs: ## The site, in target/site: open target/site/index.html
	@tools/setup.sh base rust docs
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --quiet --no-deps -p rgaps -p rgaps-client
	@tools/docs/cli.sh
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build
	@.venv/bin/python tools/docs/check.py target/site

docs-test: wheel test-driver ## Every code block of README and docs/ is run
	cargo build --locked --quiet $(DEBUG_PROGRAMS)
	@tools/docs/test.sh

miri: ## Undefined behaviour in the pure crates
	@tools/miri.sh

asan: ## Unit tests under AddressSanitizer
	@tools/sanitize.sh address

tsan: ## Unit tests under ThreadSanitizer
	@tools/sanitize.sh thread

aarch64: ## Cross build of everything; the pure crates' tests under qemu-user
	@tools/aarch64.sh

install: ## Programs, C libraries and headers below PREFIX (/usr/local); DESTDIR is respected
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" tools/install.sh

uninstall: ## Takes away what `make install` put below PREFIX
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" tools/install.sh remove

dist: wheel ## Folder for a machine without compilers, such as one with a GPU: dist/, packed as target/dist.tar.xz
	@tools/dist.sh

clean: ## Remove what the other targets made
	rm -rf target dist .venv .cache
