#!/bin/sh
# Builds the archives of the modes of weft-gex, libgasnet-<conduit>-<mode>.a, and the program of `weft bench gex`.
#
#   scripts/gex-archives.sh OUT
#
# CC is the compiler, with its first arguments.
# Each has one object with a symbol and some strings. The C compiler that links Rust programs builds them: an archive
# from cargo would carry Rust's standard library, and could not be linked beside the shared library.
set -eu
out=$1
cc=${CC:-cc}
source=$(dirname "$0")/../crates/weft-gex-c
mkdir -p "$out"

upper() { echo "$1" | tr a-z A-Z; }

for conduit in smp ofi; do
  for mode in seq par; do
    archive=$out/libgasnet-$conduit-$mode
    $cc -c -O2 -fPIC "-DGASNET_$(upper "$mode")" "-DGASNET_CONDUIT_$(upper "$conduit")=1" -D_GNU_SOURCE=1 \
      "-I$source/include" -o "$archive.o" "$source/install/link.c"
    rm -f "$archive.a"
    "${AR:-ar}" rcsD "$archive.a" "$archive.o"
    rm "$archive.o"
  done
done
$cc -O2 -DGASNET_SEQ -DGEXW_RCV_THREAD=1 -DGASNET_CONDUIT_SMP=1 -D_GNU_SOURCE=1 "-I$source/include" -o "$out/gexbench" \
  "$source/bench/gexbench.c" "-L$out" -lgasnet-smp-seq -lweft-gex '-Wl,-rpath,$ORIGIN:$ORIGIN/../lib'
