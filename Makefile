# The targets of this project. Each installs its dependencies (scripts/deps.sh) and can be repeated.
#
#   make            builds the provider, the MPI profiling library, the weft command and weft-gex in target/dist
#   make lab        builds weft-lab: the command with the measurements and simulations that this project uses
#   make install    installs all under PREFIX=/usr/local, into the tree DESTDIR= of a package if it is given
#   make install-gex   installs weft-gex alone, into GEX_DIR=PREFIX/lib/weft/gex
#   make uninstall  removes them again
#   make packages   builds for glibc 2.28, and makes wheels, .deb and archive in target/packages, as a release does;
#                   ARCH=aarch64 makes those of another processor
#   make demo       runs an MPI program over weft, libfabric's shm and tcp, and MPICH alone, and prints one table
#   make test       runs every check and test, as CI does
#   make check      runs the quick checks: format, style, clippy, rustdoc, bindings, unit tests
#   make test-long  repeats the random tests many times; takes hours
#   make deps       installs the dependencies of build, demo and tests
#   make bench      measures weft beside its peers (ten minutes on a quiet machine) and renews the documents
#   make man        renews man/fi_weft.7 from man/fi_weft.7.in and the table of variables
#   make fuzz       runs every fuzz target for MINUTES=1 of processor time, and stores its findings
#   make asan       tests the provider under the address sanitizer in every host library (tests/hosts)
#   make faults     runs the matrix of real faults (tests/test_faults.py), each cell RUNS=100 times; takes two hours
#   make advisories   looks dependencies up in RustSec's list of known faults, which it fetches
#   make icount     counts the instructions of single operations in weft and in libfabric's shm and tcp
#   make icount-baseline   stores the counts: weft's in tests/icount.toml, all in docs/benchmarking.md

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := all
.NOTPARALLEL:

TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
# With an explicit target, cargo builds into a directory of that target.
BUILT := $(TARGET)/$(if $(CARGO_BUILD_TARGET),$(notdir $(CARGO_BUILD_TARGET:.json=))/)release
DIST := $(TARGET)/dist
LOGS := $(TARGET)/test-logs
# With an explicit target, programs that run at build time are not sanitized.
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
PYTHON := .venv-mpich/bin/python

# The directory in which the libfabric of PREFIX searches for providers. Debian has one for each architecture.
PREFIX := /usr/local
MULTIARCH := $(shell cc -print-multiarch 2>/dev/null)
LIBFABRIC_DIR := $(PREFIX)/lib/$(if $(and $(filter /usr,$(PREFIX)),$(MULTIARCH)),$(MULTIARCH)/)libfabric
MAN_DIR := $(PREFIX)/share/man
DOC_DIR := $(PREFIX)/share/doc/weft
INCLUDE_DIR := $(PREFIX)/include
# Debian's zsh searches another directory of its packages than that of other systems.
ZSH_DIR := $(PREFIX)/share/zsh/$(if $(and $(filter /usr,$(PREFIX)),$(MULTIARCH)),vendor-completions,site-functions)
BASH_COMPLETIONS := $(PREFIX)/share/bash-completion/completions/weft
FISH_COMPLETIONS := $(PREFIX)/share/fish/vendor_completions.d/weft.fish
# The library that is compatible with GASNet-EX has a prefix of its own, so that no other GASNet is overwritten. An empty
# GEX_DIR leaves it out.
GEX_DIR := $(PREFIX)/lib/weft/gex
INSTALLED := $(LIBFABRIC_DIR)/libweft-fi.so $(LIBFABRIC_DIR)/libweft-coll.so $(PREFIX)/bin/weft \
  $(MAN_DIR)/man1/weft.1 $(MAN_DIR)/man7/fi_weft.7 $(MAN_DIR)/man7/weft-coll.7 \
  $(DOC_DIR)/LICENSE $(DOC_DIR)/THIRD-PARTY $(INCLUDE_DIR)/weft_memory.h \
  $(BASH_COMPLETIONS) $(ZSH_DIR)/_weft $(FISH_COMPLETIONS)

# The crates whose files are installed.
SHIPPED := -p weft-provider -p weft-cli -p weft-coll -p weft-gex-c

# Packages run on every Linux with this glibc, which the wheels of the MPI libraries need as well.
GLIBC := 2.28
PACKAGES := $(TARGET)/packages
# The processor that packages are for: x86_64 or aarch64. Another one than this machine's needs binutils of its own.
ARCH = $(firstword $(subst -, ,$(HOST)))
TRIPLE = $(ARCH)-unknown-linux-gnu
TOOLS = $(if $(filter $(TRIPLE),$(HOST)),,$(ARCH)-linux-gnu-)

STRIP ?= strip
# The command that prints manual pages and completions.
WEFT ?= $(DIST)/weft
# `install` sets modes that do not depend on the umask.
put_file = install -D -m 644

.PHONY: install install-gex packages uninstall
.PHONY: advisories all asan bench check faults fuzz dist gex lab sim build-deps deps demo provider test test-deps test-long man clean icount icount-baseline icount-program
.PHONY: check-format check-tidy check-deny check-clippy check-aarch64 check-docs check-bindings check-cargo check-sim check-pytest

all: dist

build-deps:
	@scripts/deps.sh build
test-deps deps:
	@scripts/deps.sh test

# libfabric loads files named *fi.so. A new file replaces the old one by a rename, so that a process keeps the file
# that it has mapped.
put = mkdir -p $(DIST) && cp $(BUILT)/$(1) $(DIST)/.new && mv $(DIST)/.new $(DIST)/$(2)
define put_gex
mkdir -p $(DIST)/gex
$(call put,libweft_gex_c.so,gex/libweft-gex.so)
$(call put,libweft_gex_c.a,gex/libweft-gex.a)
$(GEX_CC) scripts/gex-archives.sh $(DIST)/gex
endef
define put_all
$(call put,libweft_fi.so,libweft-fi.so)
$(call put,libweft_coll.so,libweft-coll.so)
$(call put,weft,weft)
$(put_gex)
scripts/third_party.py $(DIST)/THIRD-PARTY
endef

dist: build-deps
	cargo build --release $(SHIPPED)
	@$(put_all)
	@echo "$(DIST)/libweft-fi.so $(DIST)/libweft-coll.so $(DIST)/weft $(DIST)/gex/libweft-gex.so"

# The command for measuring and simulating weft itself. It is not installed.
lab: build-deps
	@cargo build --release -p weft-lab
	@$(call put,weft-lab,weft-lab)

# The simulator with the engine's assertions.
SIM = $(BUILT:release=sim)/weft-lab
sim: build-deps
	@cargo build --profile sim -p weft-lab

provider: build-deps
	@cargo build --release -p weft-provider
	@$(call put,libweft_fi.so,libweft-fi.so)

# weft-gex alone.
gex: build-deps
	@cargo build --release -p weft-gex-c
	@$(put_gex)
	@scripts/third_party.py $(DIST)/THIRD-PARTY

# Builds nothing, so that root needs no compiler.
install: $(if $(GEX_DIR),install-gex)
	@for file in libweft-fi.so libweft-coll.so weft THIRD-PARTY; do \
	  [ -e $(DIST)/$$file ] || { echo "$(DIST)/$$file does not exist: run make first, as the user who builds" >&2; exit 1; }; done
	$(put_file) -s --strip-program=$(STRIP) -t $(DESTDIR)$(LIBFABRIC_DIR) $(DIST)/libweft-fi.so $(DIST)/libweft-coll.so
	install -D -m 755 -s --strip-program=$(STRIP) -t $(DESTDIR)$(PREFIX)/bin $(DIST)/weft
	$(put_file) -t $(DESTDIR)$(MAN_DIR)/man7 man/fi_weft.7 man/weft-coll.7
	$(put_file) -t $(DESTDIR)$(DOC_DIR) LICENSE $(DIST)/THIRD-PARTY
	$(put_file) -t $(DESTDIR)$(INCLUDE_DIR) include/weft_memory.h
	$(WEFT) man weft | $(put_file) /dev/stdin $(DESTDIR)$(MAN_DIR)/man1/weft.1
	$(WEFT) completions bash | $(put_file) /dev/stdin $(DESTDIR)$(BASH_COMPLETIONS)
	$(WEFT) completions zsh | $(put_file) /dev/stdin $(DESTDIR)$(ZSH_DIR)/_weft
	$(WEFT) completions fish | $(put_file) /dev/stdin $(DESTDIR)$(FISH_COMPLETIONS)

# weft-gex alone.
install-gex:
	@[ -e $(DIST)/gex/gexbench ] || { echo "$(DIST)/gex is incomplete: run make first, as the user who builds" >&2; exit 1; }
	STRIP=$(STRIP) scripts/gex-install.sh $(DIST)/gex "$(DESTDIR)" "$(GEX_DIR)"

uninstall:
	rm -f $(addprefix $(DESTDIR),$(INSTALLED))
	rm -rf "$(DESTDIR)$(PREFIX)/lib/weft/gex"
	-@rmdir --ignore-fail-on-non-empty $(DESTDIR)$(LIBFABRIC_DIR) $(DESTDIR)$(DOC_DIR) $(DESTDIR)$(PREFIX)/lib/weft 2>/dev/null

# The only way to packages; scripts/release.sh takes it, too. zig is the linker, with the symbols of that glibc. A target
# directory of their own keeps these files apart from those that are linked with this machine's glibc.
packages: export CARGO_TARGET_DIR := $(TARGET)/portable
packages: export CARGO_BUILD_TARGET = $(TRIPLE)
# The files do not name the directories of this machine, so that every machine makes the same ones.
packages: export RUSTFLAGS = --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)=/cargo --remap-path-prefix=$(CURDIR)=/weft
packages: export STRIP = $(TOOLS)strip
packages: export OBJDUMP = $(TOOLS)objdump
packages: export WEFT = $(TARGET)/$(if $(TOOLS),,portable/)dist/weft
packages: BUILT = $(TARGET)/portable/$(TRIPLE)/packages
packages: DIST := $(TARGET)/portable/dist
packages: GEX_CC = AR=$(TOOLS)ar CC="$(CURDIR)/.venv-packages/bin/python -m ziglang cc -target $(subst -unknown,,$(TRIPLE)).$(GLIBC)"
packages:
	@scripts/deps.sh packages $(TRIPLE)
	@# This machine cannot run the command of another processor.
	$(if $(TOOLS),env -u CARGO_BUILD_TARGET -u RUSTFLAGS CARGO_TARGET_DIR=$(TARGET) $(MAKE) --no-print-directory dist)
	PATH=$(CURDIR)/.venv-packages/bin:$$PATH \
	  cargo zigbuild --locked --profile packages --target $(TRIPLE).$(GLIBC) $(SHIPPED)
	@$(put_all)
	@scripts/package.py --arch $(ARCH) --portable $(GLIBC) $(PACKAGES)

man: dist
	@$(DIST)/weft man > man/fi_weft.7

# Builds the provider alone, while MPICH is installed. The build prints nothing unless it fails.
demo: export CARGO_TERM_QUIET := true
demo: build-deps
	@echo "building weft and installing MPICH (about a minute)" >&2
	@$(MAKE) --no-print-directory -s provider & build=$$!; \
	  scripts/deps.sh demo || { kill $$build; exit 1; }; wait $$build
	@mkdir -p $(TARGET)/demo
	@.venv-mpich/bin/mpicc -O2 -Wall -o $(TARGET)/demo/mpi_bench scripts/mpi_bench.c
	@$(PYTHON) scripts/demo.py

bench: test-deps dist lab
	@mkdir -p $(TARGET)/demo
	@.venv-mpich/bin/mpicc -O2 -Wall -o $(TARGET)/demo/mpi_bench scripts/mpi_bench.c
	@$(PYTHON) scripts/bench.py

# Fuzz targets are tests of their crates, and run briefly in `make test`, too. getinfo_hints runs once in each host
# library.
fuzz: export WEFT_FUZZ_STORE := 1
fuzz: export WEFT_FUZZ_MINUTES := $(or $(MINUTES),1)
fuzz: test-deps
	cargo test -p weft-engine --test fuzz -- --nocapture
	cargo test -p weft-nic --lib --test tcp -- --nocapture fuzz
	cargo test -p weft-fi --lib -- --nocapture fuzz
	cargo test -p weft-fi --test hosts -- --nocapture getinfo_hints

# The compiler includes the sanitizer as an unstable feature, which RUSTC_BOOTSTRAP enables. Leaks are not detected,
# since hosts never unload the provider. The loaded provider uses the sanitizer of the program, which must therefore
# export its symbols (-rdynamic).
asan: export WEFT_TEST_ASAN := 1
asan: export RUSTC_BOOTSTRAP := 1
asan: export RUSTFLAGS := -Zsanitizer=address
asan: export ASAN_OPTIONS := detect_leaks=0:abort_on_error=1
asan: test-deps
	cargo rustc --target $(HOST) --target-dir $(TARGET)/asan -p weft-fi --test hosts -- -Clink-arg=-rdynamic
	$$(ls -t $(TARGET)/asan/$(HOST)/debug/deps/hosts-* | grep -v '\.d$$' | head -1) $(GROUP)

faults: export WEFT_FAULT_RUNS := $(or $(RUNS),100)
faults: export WEFT_FAULT_SEED := $(or $(SEED),1)
faults: test-deps dist
	$(PYTHON) -m pytest tests/test_faults.py -rP $(if $(CELL),-k "$(CELL)")

# The provider's packages are named as well, so that one build with the same features serves all.
icount-program: dist
	@cargo build --release -p weft-provider -p weft-cli -p weft-icount

icount: test-deps icount-program
	@$(PYTHON) scripts/icount.py

icount-baseline: test-deps icount-program
	@$(PYTHON) scripts/icount.py --renew

# The checks run one after the other, cheap ones first. Each writes a log. The closing lines of all logs are repeated
# at the end.
test: test-deps
	@rm -rf $(LOGS) && mkdir -p $(LOGS)
	@$(MAKE) --no-print-directory check-format check-tidy check-deny check-clippy check-aarch64 check-docs check-bindings check-cargo check-sim check-pytest
	@scripts/closing-lines.sh $(LOGS)

# The quick ones of the checks of `make test`.
check: test-deps
	@$(MAKE) --no-print-directory check-format check-tidy check-deny check-clippy check-docs check-bindings
	cargo test --workspace --lib

# Each random test with many more seeds than in `make test`, then fuzzing and the matrix of real faults.
test-long: test-deps dist sim
	$(SIM) sim faults --seed 10000 --seeds 1000000
	$(SIM) sim faults --seed 300 --seeds 100000 --do collective
	WEFT_SIM_SEEDS=20000 cargo test -p weft-sim --test hostile
	WEFT_TABLE_MEMBERS=1-17,33 cargo test -p weft-fi --test hosts -- --nocapture table_
	WEFT_TCP_SEEDS=100000 cargo test -p weft-nic --lib tcp::faults
	@$(MAKE) --no-print-directory fuzz MINUTES=$(or $(MINUTES),10)
	@$(MAKE) --no-print-directory faults RUNS=$(or $(RUNS),100)

check-format:
	cargo fmt --all --check

# Counts violations of the style rules; fails if a rule exceeds its limit.
check-tidy:
	cargo xtask tidy

# Licences, sources and versions of dependencies (deny.toml).
DENY = PATH=$(CURDIR)/.venv-checks/bin:$$PATH cargo deny check --hide-inclusion-graph
check-deny:
	$(DENY) licenses bans sources

advisories:
	@scripts/deps.sh checks
	$(DENY) advisories

check-clippy:
	cargo clippy --workspace --all-targets -- -D warnings
	cargo clippy -p weft-cli -- -D warnings

# The shipped crates for another processor.
check-aarch64:
	@scripts/deps.sh cross aarch64-unknown-linux-gnu
	PATH=$(CURDIR)/.venv-packages/bin:$$PATH \
	  cargo-zigbuild check --locked --target aarch64-unknown-linux-gnu.$(GLIBC) $(SHIPPED)

check-docs:
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items

check-bindings:
	cargo xtask bindings --check

# The workspace's tests, including the provider in Debian's libfabric and in those of the MPI libraries. The longest
# tests wait a third of the time, so the number of threads is one and a half times that of the processors.
check-cargo: export RUST_TEST_THREADS ?= $(shell expr $$(nproc) \* 3 / 2)
check-cargo:
	cargo test --workspace 2>&1 | tee $(LOGS)/cargo-test.log

# The engine under simulated faults, and the engine with planted bugs, which the simulation must find.
check-sim: sim
	$(SIM) sim faults --seed 0 --seeds 10000 2>&1 | tee $(LOGS)/sim.log
	$(SIM) sim faults --seed 0 --seeds 300 --do collective 2>&1 | tee $(LOGS)/sim-collective.log
	cargo test -p weft-sim --features mutants --test planted 2>&1 | tee $(LOGS)/planted.log
	cargo test -p weft-gex-c --features sim --test sim 2>&1 | tee $(LOGS)/gex-sim.log

# Real jobs over the provider. Most of them wait for a time, so two files run at a time. The jobs of each test have
# namespaces of their own. The suite of mpi4py needs all processors.
check-pytest: dist icount-program
	$(PYTHON) -m pytest tests -n 2 --dist loadfile --no-loadscope-reorder --ignore tests/test_mpi4py_suite.py 2>&1 \
	  | tee $(LOGS)/pytest.log
	$(PYTHON) -m pytest tests/test_mpi4py_suite.py 2>&1 | tee $(LOGS)/pytest-suite.log

clean:
	cargo clean
	rm -rf .cache .venv-mpich .venv-ompi .venv-impi
