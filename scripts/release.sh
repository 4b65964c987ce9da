#!/usr/bin/env bash
# Makes the files of a release: the source and its dependencies, and the packages of a build that runs with glibc 2.28.
#
#     scripts/release.sh [OUT]      OUT is target/release-VERSION by default
#
# The build uses zig as the linker, with the symbols of glibc 2.28, which the wheels of the MPI libraries need as well.
# cargo-zigbuild and zig come from PyPI into .venv-release. The host must be Linux on x86-64 with Rust, python3, git,
# xz, binutils and dpkg-deb.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'release: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

glibc=2.28
host=x86_64-unknown-linux-gnu
tools=(cargo-zigbuild==0.24.1 ziglang==0.17.1)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
out=$(realpath -m "${1:-target/release-$version}")
[ -z "$(git status --porcelain)" ] || die 'the working tree has changes: commit them, so that the source archive is what was built'

rm -rf "$out"
mkdir -p "$out"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

say 'building for glibc '$glibc
[ -x .venv-release/bin/cargo-zigbuild ] || python3 -m venv .venv-release
.venv-release/bin/python -m pip install --quiet --disable-pip-version-check "${tools[@]}"
# A target directory of its own, since the linker differs from that of other builds.
export CARGO_TARGET_DIR=$PWD/target/portable
PATH=$PWD/.venv-release/bin:$PATH cargo zigbuild --locked --profile packages --target "$host.$glibc" -p weft-provider -p weft-cli -p weft-coll
mkdir -p "$CARGO_TARGET_DIR/dist"
built=$CARGO_TARGET_DIR/$host/packages
cp "$built/libweft_fi.so" "$CARGO_TARGET_DIR/dist/libweft-fi.so"
cp "$built/libweft_coll.so" "$CARGO_TARGET_DIR/dist/libweft-coll.so"
cp "$built/weft" "$CARGO_TARGET_DIR/dist/weft"

stripped=$(mktemp)
strip -o "$stripped" "$built/libweft_fi.so"
size=$(stat -c %s "$stripped")
rm "$stripped"
[ "$size" -le $((5 << 19)) ] || die "the stripped provider has $size bytes, more than 2.5 MiB"

say 'making packages'
python3 scripts/package.py "$out"

say 'making source archives'
git archive --format=tar --prefix="weft-$version/" HEAD | xz -9 -T0 > "$out/weft-$version.tar.xz"
vendor=$(mktemp -d)
trap 'rm -rf "$vendor"' EXIT
mkdir -p "$vendor/.cargo"
cargo vendor --quiet --locked "$vendor/vendor" > "$vendor/.cargo/config.toml"
sed -i "s#directory = .*#directory = \"vendor\"#" "$vendor/.cargo/config.toml"
# Unpacked inside the source directory, it makes a build without network.
tar -C "$vendor" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -cf - .cargo vendor |
  xz -6 -T0 > "$out/weft-$version-vendor.tar.xz"

(cd "$out" && sha256sum ./* | sed 's#\./##' > SHA256SUMS)
say "done:"
ls -l "$out" >&2
