#!/usr/bin/env bash
# Runs two ranks of PyPI's MPICH for aarch64 over the packages for aarch64, under qemu: in shared memory, then over TCP.
#
#     scripts/aarch64.sh DIR      DIR has the files of `make packages ARCH=aarch64`
#
# The launcher is the MPICH of this machine. Debian's packages qemu-user and libc6-arm64-cross are needed.
set -euo pipefail
cd "$(dirname "$0")/.."
die() { printf 'aarch64: %s\n' "$*" >&2; exit 1; }

[ $# = 1 ] || die 'usage: scripts/aarch64.sh DIR'
archive=$(compgen -G "$1/weft-[0-9]*-aarch64-linux.tar.xz" | head -1) || die "$1 has no archive for aarch64: make packages ARCH=aarch64"
sysroot=/usr/aarch64-linux-gnu
for needed in "$(command -v qemu-aarch64 || echo qemu-user)" "$sysroot/lib/libc.so.6"; do
  [ -e "$needed" ] || die "$needed is missing: apt-get install qemu-user libc6-arm64-cross libgcc-s1-arm64-cross"
done
scripts/deps.sh demo
scripts/deps.sh cross aarch64-unknown-linux-gnu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wanted=$(grep '^mpich==' scripts/requirements-mpich.txt)
.venv-mpich/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
  --platform manylinux_2_28_aarch64 --dest "$work" "$wanted" || die "pip could not download $wanted for aarch64"
python3 -m zipfile -e "$work"/mpich-*.whl "$work/wheel"
mpi=$(dirname "$(find "$work/wheel" -name mpi.h | head -1)")/..
tar -C "$work" -xJf "$archive"
weft=$(echo "$work"/weft-*-aarch64-linux)
.venv-packages/bin/python -m ziglang cc -target aarch64-linux-gnu.2.28 -O2 -I "$mpi/include" -o "$work/program" \
  tests/support/aarch64.c -L "$mpi/lib" -lmpi

libraries=$mpi/lib:$mpi/lib/mpich:$(dirname "$(find "$work/wheel" -name 'libfabric*.so*' | head -1)")
# run PATH VARIABLE...: runs the program, and checks that all its messages took that path.
run() {
  local path=$1 output
  shift
  output=$(timeout 120 .venv-mpich/bin/mpiexec -n 2 -genv FI_PROVIDER weft -genv FI_PROVIDER_PATH "$weft/lib/libfabric" \
    -genv FI_WEFT_REPORT 1 -genv MPIR_CVAR_CH4_NETMOD ofi -genv MPIR_CVAR_NOLOCAL 1 "$@" \
    qemu-aarch64 -L "$sysroot" -E "LD_LIBRARY_PATH=$libraries:$sysroot/lib" "$work/program" 2>&1) || die "failed: $output"
  echo "$output"
  [ "$(grep -c "^weft: rank [01] of 2, .* messages .* by $path" <<<"$output")" = 2 ] || die "messages took another path than $path"
}
run shm
run TCP -genv FI_WEFT_SHM 0
