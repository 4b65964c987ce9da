#!/bin/sh
# Installs weft-gex into a prefix of its own, in the layout that GASNet clients expect. Builds nothing.
#
#   scripts/gex-install.sh BUILT DESTDIR PREFIX [NAMED]
#
# BUILT has libweft-gex.so, libweft-gex.a and the archives (scripts/gex-archives.sh). Files are written to
# DESTDIR/PREFIX. Those of pkg-config name NAMED, which is PREFIX by default. STRIP, if it is set, removes what
# programs do not need.
set -eu
built=$1 prefix=${4-$3}
to=$2$3
source=$(dirname "$0")/../crates/weft-gex-c

put() { install -D -m "$1" "$2" "$3"; }

for header in "$source"/include/*.h; do
  put 644 "$header" "$to/include/$(basename "$header")"
done
for library in libweft-gex.so libweft-gex.a; do
  put 644 "$built/$library" "$to/lib/$library"
done
# Rust's standard library carries bitcode, three quarters of the archive, which no linker of clients reads.
[ -z "${STRIP-}" ] || "$STRIP" -g -R .llvmbc -R .llvmcmd "$to/lib/libweft-gex.so" "$to/lib/libweft-gex.a"
put 755 "$built/gexbench" "$to/bin/gexbench"
put 644 "$source/bench/gexbench.c" "$to/share/gexbench.c"
for example in "$source"/../../docs/examples/gex/*.c; do
  put 644 "$example" "$to/share/examples/$(basename "$example")"
done

# The tree that UPC++ takes for GASNet's sources.
for file in configure gasnet_config.h.in gasnetex.h docs/GASNet-EX.txt; do
  put 644 "$source/install/src/$file" "$to/share/weft-gex/src/$file"
done
chmod 755 "$to/share/weft-gex/src/configure"

# fill TEMPLATE FILE: writes a file of one conduit and mode.
fill() {
  mkdir -p "$(dirname "$2")"
  sed -e "s|@PREFIX@|$prefix|g" -e "s|@CONDUIT@|$conduit|g" -e "s|@MODE@|$mode|g" -e "s|@THREADFLAGS@|$threads|g" \
    -e "s|@DEFINES@|$defines -DGASNET_CONDUIT_$upper=1|g" -e "s|@SSH@|$ssh|g" -e "s|@TOOLSDEFINES@|$tools|g" -e 's|  *$||' \
    "$source/install/$1" >"$2"
  chmod 644 "$2"
}

for mode in seq par; do
  case $mode in
  seq) threads='' defines='-D_GNU_SOURCE=1 -DGASNET_SEQ' tools='-D_GNU_SOURCE=1' ;;
  par) threads='-pthread' defines='-D_GNU_SOURCE=1 -DGASNET_PAR -D_REENTRANT' ;;
  esac
  [ $mode = seq ] || tools='-D_GNU_SOURCE=1 -D_REENTRANT -DGASNETT_THREAD_SAFE=1'
  for conduit in smp ofi; do
    case $conduit in
    smp) upper=SMP ssh=0 ;;
    ofi) upper=OFI ssh=1 ;;
    esac
    put 644 "$built/libgasnet-$conduit-$mode.a" "$to/lib/libgasnet-$conduit-$mode.a"
    fill conduit.mak.in "$to/include/$conduit-conduit/$conduit-$mode.mak"
    fill conduit.pc.in "$to/lib/pkgconfig/gasnet-$conduit-$mode.pc"
  done
  fill tools.mak.in "$to/include/gasnet_tools-$mode.mak"
  fill tools.pc.in "$to/lib/pkgconfig/gasnet_tools-$mode.pc"
  # A script for the linker: the tools are in the library.
  echo 'INPUT(-lweft-gex)' >"$to/lib/libgasnet_tools-$mode.a"
  chmod 644 "$to/lib/libgasnet_tools-$mode.a"
done
for conduit in smp ofi; do
  put 755 "$source/install/gasnetrun" "$to/bin/gasnetrun_$conduit"
done
