#!/usr/bin/env bash
# Makes the files of a release: the packages of `make packages`, the source, and its dependencies.
#
#     scripts/release.sh [OUT]      OUT is target/release-VERSION by default
#
# The host must be Linux on x86-64 with Rust, python3, git, xz, binutils (also those of aarch64) and dpkg-deb. The same
# commit gives the same files on every such host, whatever the directories are.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'release: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
out=$(realpath -m "${1:-target/release-$version}")
[ -z "$(git status --porcelain)" ] || die 'the working tree has changes: commit them, so that the source archive is what was built'

rm -rf "$out"
mkdir -p "$out"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

say 'looking for known faults of dependencies'
make --no-print-directory advisories

for arch in x86_64 aarch64; do
  say "making packages for $arch"
  make --no-print-directory packages PACKAGES="$out" ARCH=$arch
done

say 'listing the dependencies'
.venv-packages/bin/python scripts/sbom.py "$out/weft-$version.cdx.json"

say 'making source archives'
git archive --format=tar --prefix="weft-$version/" HEAD | xz -9 -T0 > "$out/weft-$version.tar.xz"
vendor=$(mktemp -d)
trap 'rm -rf "$vendor"' EXIT
mkdir -p "$vendor/.cargo"
cargo vendor --quiet --locked "$vendor/vendor" > "$vendor/.cargo/config.toml"
sed -i "s#directory = .*#directory = \"vendor\"#" "$vendor/.cargo/config.toml"
# Unpacked inside the source directory, it makes a build without network.
tar -C "$vendor" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --mode=u=rwX,go=rX --owner=0 --group=0 --numeric-owner \
  -cf - .cargo vendor | xz -6 -T0 > "$out/weft-$version-vendor.tar.xz"

(cd "$out" && rm SHA256SUMS && sha256sum ./* | sed 's#\./##' > .sums && mv .sums SHA256SUMS)
say "done:"
ls -l "$out" >&2
