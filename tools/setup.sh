#!/usr/bin/env bash
# Installs what the build needs, and nothing that is already there: a second call takes well under
# a second. Each argument is a group: base, hosts, torch, vm, kernel, linux, valgrind, rust, python, docs, chromium,
# aarch64, nightly, miri, fuzz, nvcc, numba, math.
#
# System packages come from apt-get (through sudo if we are not root), Rust parts from rustup,
# Python packages go into .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

RUST_MIN=1.85
PYTHON_MIN=3.10
FUZZ_VERSION=0.13.2

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }
# True if version $1 is at least $2.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | sed -n 1p)" = "$2" ]; }

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else fail "need root for: $*; run it as root, then make again"; fi
}

# Installs the Debian packages among the arguments that are missing.
apt_need() {
  local missing=() package
  for package; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
      missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  command -v apt-get >/dev/null ||
    fail "no apt-get here; install the equivalents of these Debian packages: ${missing[*]}"
  say "apt-get install ${missing[*]}"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    fail "apt-get could not install: ${missing[*]}"
}

setup_base() {
  # util-linux: unshare, for the container tests; strace: counts the system calls of a loan;
  # gdb and procps: tell what a test that hangs is waiting for.
  apt_need build-essential pkg-config ca-certificates curl git python3 python3-venv strace util-linux \
    gdb procps
}

setup_hosts() {
  # Network namespaces and the cable between them.
  apt_need iproute2
}

setup_torch() {
  # 150 MB. PyPI's wheel for x86-64 has 539 MB and needs CUDA's libraries besides; Debian's is for the CPU.
  apt_need python3-torch libopenblas0-pthread
}

setup_vm() {
  # Elsewhere tests/vm does nothing, and says so.
  [ "$(uname -m)" = x86_64 ] || return 0
  # kmod, cpio, xz and zstd: an initramfs of the kernel package's modules. The others run in the guests too, which
  # see this machine's files.
  apt_need qemu-system-x86 busybox-static kmod cpio xz-utils zstd iproute2 util-linux python3 \
    rdma-core ibverbs-providers ibverbs-utils perftest libibverbs-dev
}

setup_kernel() {
  [ "$(uname -m)" = x86_64 ] || fail "the kernel module is built and tested on x86-64 only"
  setup_vm
  # What Kbuild's own programs need. Kernel headers are unpacked by kernel/kernels.sh, not installed.
  apt_need build-essential bc libelf1 rsync perl debian-archive-keyring
}

# Building a kernel (kernel/debug-kernel.sh).
setup_linux() {
  setup_kernel
  apt_need flex bison libelf-dev
}

# Draws the page of `rgaps view`.
setup_chromium() {
  apt_need chromium-headless-shell
}

setup_valgrind() {
  apt_need valgrind
}

# Debian 13 and Ubuntu 24.04 package rustup; elsewhere its own installer does.
install_rustup() {
  if apt-cache show rustup >/dev/null 2>&1; then
    apt_need rustup
  else
    say "installing rustup (https://rustup.rs)"
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
      sh -s -- -y --quiet --no-modify-path --default-toolchain none ||
      fail "could not install rustup; install Rust $RUST_MIN or newer with clippy and rustfmt"
  fi
}

setup_rust() {
  command -v rustup >/dev/null || command -v cargo >/dev/null || install_rustup
  if command -v rustup >/dev/null; then
    local toolchain
    toolchain=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
    if ! { cargo clippy --version && cargo fmt --version; } >/dev/null 2>&1; then
      rustup toolchain install "$toolchain" --profile minimal -c clippy -c rustfmt
    fi
  fi
  local version
  version=$(rustc --version | cut -d' ' -f2)
  at_least "$version" "$RUST_MIN" || fail "rustc $version is older than $RUST_MIN"
}

# The first interpreter that is new enough for the wheel and can make virtual environments.
find_python() {
  local candidate version
  for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10 /usr/bin/python3; do
    version=$("$candidate" -c 'import venv, ensurepip, sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    at_least "$version" "$PYTHON_MIN" && { echo "$candidate"; return; }
  done
  fail "no Python $PYTHON_MIN or newer with the venv module found"
}

setup_python() {
  python_need requirements
}

# What builds the site.
setup_docs() {
  setup_python
  python_need requirements-docs
}

# NVIDIA's compiler, from PyPI, into .cache/nvcc: 270 MB.
setup_nvcc() {
  local wanted=tools/requirements-nvcc.txt into=.cache/nvcc
  cmp -s "$wanted" "$into/installed" && return
  setup_python
  say "installing $wanted into $into"
  rm -rf "$into"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: --target "$into" -r "$wanted"
  cp "$wanted" "$into/installed"
}

setup_numba() {
  local wanted=tools/requirements-numba.txt into=.cache/numba
  cmp -s "$wanted" "$into/installed" && return
  setup_python
  say "installing $wanted into $into"
  rm -rf "$into"
  # An environment of its own: Numba replaces a part of itself when Python starts.
  .venv/bin/python -m venv "$into"
  "$into/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary=:all: -r "$wanted"
  cp "$wanted" "$into/installed"
}

# Headers of cuBLAS and others, from PyPI, into .cache/math: a download of 1 GB, of which 3 MB stay.
setup_math() {
  local wanted=tools/requirements-math.txt into=.cache/math
  cmp -s "$wanted" "$into/installed" && return
  setup_python
  say "fetching the headers of $wanted into $into"
  rm -rf "$into"
  mkdir -p "$into/include"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --dry-run --ignore-installed --no-deps --only-binary=:all: --report "$into/report" \
    -r "$wanted"
  # The wheels have 1 GB. Only the headers in them are read.
  .venv/bin/python - "$into" <<'PYTHON'
import json, pathlib, sys
from remotezip import RemoteZip
into = pathlib.Path(sys.argv[1])
for package in json.loads((into / "report").read_text())["install"]:
    with RemoteZip(package["download_info"]["url"]) as wheel:
        for name in wheel.namelist():
            if "/include/" in name and name.endswith(".h"):
                (into / "include" / name.rsplit("/", 1)[1]).write_bytes(wheel.read(name))
PYTHON
  cp "$wanted" "$into/installed"
}

# Installs tools/$1.txt into .venv.
python_need() {
  local wanted=tools/$1.txt stamp=.venv/$1.installed
  cmp -s "$wanted" "$stamp" && .venv/bin/python -c '' 2>/dev/null && return
  local python
  python=$(find_python)
  say "installing $wanted into .venv ($("$python" --version))"
  .venv/bin/python -c '' 2>/dev/null || "$python" -m venv --clear .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r "$wanted"
  cp "$wanted" "$stamp"
}

# Adds a target or component to a toolchain if it is not there: kind, name, toolchain.
rustup_need() {
  command -v rustup >/dev/null ||
    fail "rustup is needed for $1 $2; install it from https://rustup.rs or add that $1 by other means"
  # An installed component is listed with its target triple behind its name.
  rustup "$1" list --installed --toolchain "$3" | grep -E "^$2(-|$)" >/dev/null ||
    rustup "$1" add --toolchain "$3" "$2"
}

setup_aarch64() {
  apt_need gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
  local toolchain
  toolchain=$(rustup show active-toolchain | cut -d' ' -f1)
  rustup_need target aarch64-unknown-linux-gnu "$toolchain"
}

setup_nightly() {
  rustup toolchain list | grep '^nightly' >/dev/null || rustup toolchain install nightly --profile minimal
  rustup_need component rust-src nightly
}

setup_miri() {
  setup_nightly
  rustup_need component miri nightly
}

setup_fuzz() {
  setup_nightly
  command -v cargo-fuzz >/dev/null && return
  say "building cargo-fuzz (about 2 CPU minutes, once per machine)"
  CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR="$PWD/target/cargo-fuzz" \
    cargo install cargo-fuzz --version "$FUZZ_VERSION" --locked --debug --quiet
  rm -rf target/cargo-fuzz
}

for group; do
  "setup_$group"
done
