"""Packages: each is made once a run, installed into an empty world, and carries a real job there."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import harness
import jobs
import pytest
import yaml

# The limit of what `make` builds. Packages are built for size, and scripts/package.py has their limit of 2.5 MiB.
LARGEST_PROVIDER = 3_100_000
OVERLAY = str(harness.SUPPORT / "overlay.sh")
DEBIAN_PACKAGES = jobs.ROOT / ".cache" / "debs"
PINGPONG = "-m mpi4py.bench pingpong -n 64 --loop 2 --skip 0"
CARRIED = re.compile(
    r"^weft: 2 of 2 ranks used weft: [\d,]+ messages \(.*\) by shm, nothing by TCP, no errors(; MPIR_CVAR_NOLOCAL.*)?$", re.M
)
INSTALLED = {
    "usr/bin/weft",
    "usr/lib/LIB/libweft-fi.so",
    "usr/lib/LIB/libweft-coll.so",
    "usr/share/man/man1/weft.1",
    "usr/share/man/man7/fi_weft.7",
    "usr/share/man/man7/weft-coll.7",
    "usr/include/weft_memory.h",
    "usr/share/doc/weft/LICENSE",
    "usr/share/doc/weft/THIRD-PARTY",
    "usr/share/bash-completion/completions/weft",
    "usr/share/zsh/ZSH/_weft",
    "usr/share/fish/vendor_completions.d/weft.fish",
}
GEX = "lib/weft/gex/"
GEX_SOURCE = jobs.ROOT / "crates/weft-gex-c"
GEX_INSTALLED = {
    *(f"include/{header.name}" for header in (GEX_SOURCE / "include").glob("*.h")),
    *(f"include/{name}-conduit/{name}-{mode}.mak" for name in ["smp", "ofi"] for mode in ["seq", "par"]),
    *(f"include/gasnet_tools-{mode}.mak" for mode in ["seq", "par"]),
    *(f"lib/lib{name}-{mode}.a" for name in ["gasnet-smp", "gasnet-ofi", "gasnet_tools"] for mode in ["seq", "par"]),
    *(f"lib/pkgconfig/gasnet{name}-{mode}.pc" for name in ["-smp", "-ofi", "_tools"] for mode in ["seq", "par"]),
    "lib/libweft-gex.so",
    "lib/libweft-gex.a",
    "bin/gasnetrun_ofi",
    "bin/gasnetrun_smp",
    "bin/gexbench",
    "share/gexbench.c",
    *(f"share/examples/{example.name}" for example in (jobs.ROOT / "docs/examples/gex").glob("*.c")),
    *(f"share/weft-gex/src/{name}" for name in ["configure", "gasnet_config.h.in", "gasnetex.h", "docs/GASNet-EX.txt"]),
}

pytestmark = pytest.mark.skipif(harness.PROVIDER != "weft", reason="packages hold weft only")


@pytest.fixture(scope="session")
def packages() -> Path:
    """The directory of this build's packages."""
    directory: Path = jobs.TARGET / "tests" / "packages"
    shutil.rmtree(directory, ignore_errors=True)
    made = package_script(str(directory))
    assert made.returncode == 0, made.stderr
    return directory


def package_script(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs scripts/package.py on the files that `make` built, with a umask that no package may show."""
    command = [str(jobs.ROOT / "scripts/package.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, umask=0o077)


def clean_environment() -> dict[str, str]:
    """The environment of a newcomer: no variable of libfabric or of an MPI library is set."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(jobs.FOREIGN_PREFIXES)}
    return {**env, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}


def run_overlaid(runner: harness.Runner, kind: str, directory: Path, script: str) -> str:
    """Runs a script in an overlay, and returns its output."""
    harness.need_sandbox()
    command = ["bash", OVERLAY, kind, str(directory), "bash", "-euc", script]
    outcome = runner.run(command, clean_environment(), 120)
    if outcome.status == 77:
        pytest.skip(f"no overlay, or no Slurm: {outcome.output.strip()[-300:]}")
    return outcome.check().output


def installed_files(prefix: str, lib: str = "libfabric", zsh: str = "site-functions") -> set[str]:
    """The files of an installation under a prefix, which is empty or ends with a slash."""
    return {name.replace("usr/", prefix, 1).replace("LIB", lib).replace("ZSH", zsh) for name in INSTALLED}


def gex_files(prefix: str) -> set[str]:
    """The files of the library for GASNet clients under a prefix, which is empty or ends with a slash."""
    return {f"{prefix}{name}" for name in GEX_INSTALLED}


def files(tree: Path) -> set[str]:
    """The files of a tree."""
    return {str(file.relative_to(tree)) for file in tree.rglob("*") if not file.is_dir()}


def make(target: str, tree: Path, prefix: str, *more: str) -> None:
    """Runs a target of the Makefile."""
    command = ["make", "-s", "-C", str(jobs.ROOT), target, f"PREFIX={prefix}", f"DESTDIR={tree}", *more]
    subprocess.run(command, check=True, timeout=60)


def test_make_install_and_uninstall(tmp_path: Path) -> None:
    """All files are installed, stripped, where libfabric searches, and removed again."""
    multiarch = subprocess.run(["cc", "-print-multiarch"], capture_output=True, text=True, check=True).stdout.strip()
    for prefix, lib in [("/usr", f"{multiarch}/libfabric" if multiarch else "libfabric"), ("/opt/weft", "libfabric")]:
        tree = tmp_path / prefix.replace("/", "-")
        make("install", tree, prefix)
        zsh = "vendor-completions" if prefix == "/usr" and multiarch else "site-functions"
        inside = f"{prefix.strip('/')}/"
        assert files(tree) == installed_files(inside, lib, zsh) | gex_files(inside + GEX)
        provider = tree / prefix.strip("/") / "lib" / lib / "libweft-fi.so"
        assert provider.stat().st_size <= LARGEST_PROVIDER
        make("uninstall", tree, prefix)
        assert not files(tree)
        make("install", tree, prefix, "GEX_DIR=")
        assert files(tree) == installed_files(inside, lib, zsh)


def test_installed_command_finds_its_provider(tmp_path: Path, runner: harness.Runner) -> None:
    """The command from a prefix sets the path of its own provider."""
    make("install", tmp_path, "/opt/weft")
    command = [str(tmp_path / "opt/weft/bin/weft"), "run", "--dry-run", str(jobs.MPICH / "bin/mpiexec"), "./a.out"]
    line = subprocess.run(command, capture_output=True, text=True, check=True, env=clean_environment()).stdout
    assert f"FI_PROVIDER_PATH={tmp_path}/opt/weft/lib/libfabric " in line, line


def test_archive_holds_the_installed_files(packages: Path) -> None:
    """The archive unpacks into one directory."""
    archive = next(packages.glob("weft-[0-9]*-linux.tar.xz"))
    with tarfile.open(archive) as opened:
        names = [name for name in opened.getnames() if Path(name).suffix]
    top = archive.name.removesuffix(".tar.xz")
    assert {name for name in installed_files(f"{top}/") if Path(name).suffix} <= set(names), names


def test_packages_do_not_depend_on_the_umask(packages: Path) -> None:
    """All users can read all files. The checksums are right."""
    sums = (packages / "SHA256SUMS").read_text()
    names = {line.split()[1] for line in sums.splitlines()}
    assert names == {file.name for file in packages.iterdir()} - {"SHA256SUMS"}
    subprocess.run(["sha256sum", "--quiet", "--check", "SHA256SUMS"], cwd=packages, check=True)
    for name in packages.glob("*-linux.tar.xz"):
        with tarfile.open(name) as archive:
            assert {entry.mode for entry in archive} == {0o644, 0o755}
    with zipfile.ZipFile(next(packages.glob("weft_fabric-*.whl"))) as wheel:
        assert {entry.external_attr >> 16 for entry in wheel.infolist()} == {0o100644, 0o100755}
    debs = list(packages.glob("*.deb"))
    assert len(debs) == 2
    for package in debs:
        listing = subprocess.run(["dpkg-deb", "-c", str(package)], capture_output=True, text=True, check=True)
        assert {line.split()[0] for line in listing.stdout.splitlines()} == {"drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x"}


def test_packages_have_the_licences_of_dependencies(packages: Path) -> None:
    """Each package has the licence texts of the projects whose code it contains."""
    with zipfile.ZipFile(next(packages.glob("weft_fabric-*.whl"))) as wheel:
        texts = [next(wheel.read(name).decode() for name in wheel.namelist() if name.endswith("/licenses/THIRD-PARTY"))]
    for name in ["weft", "weft-gasnet"]:
        archive = next(packages.glob(f"{name}-[0-9]*-linux.tar.xz"))
        with tarfile.open(archive) as opened:
            content = opened.extractfile(f"{archive.name.removesuffix('.tar.xz')}/share/doc/{name}/THIRD-PARTY")
            assert content is not None
            texts.append(content.read().decode())
        package = next(packages.glob(f"{name}_*.deb"))
        unpack = f"dpkg-deb --fsys-tarfile {package} | tar -xO ./usr/share/doc/{name}/copyright"
        texts.append(subprocess.run(["sh", "-c", unpack], capture_output=True, text=True, check=True).stdout)
    for text in texts:
        for project in ["ring", "snow", "libc", "clap", "ratatui", "the Rust standard library"]:
            assert re.search(rf"^{project} .*https://", text, re.M), project
        assert "Permission is hereby granted" in text


def test_packages_for_other_machines_are_refused(tmp_path: Path) -> None:
    """`make packages` builds for glibc 2.28. A build with the symbols of this machine's glibc makes no such package."""
    made = package_script("--portable", "2.17", str(tmp_path))
    assert made.returncode == 1 and "newer than 2.17: use `make packages`" in made.stderr, made.stderr
    assert not list(tmp_path.iterdir())


def test_there_is_one_way_to_packages() -> None:
    """`make packages` links for the glibc that README names. A release takes the same way."""
    command = ["make", "-n", "-C", str(jobs.ROOT), "packages"]
    steps = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    glibc = re.search(r"glibc (\d+\.\d+)", (jobs.ROOT / "README.md").read_text())
    assert glibc is not None
    assert re.search(rf"cargo zigbuild .*-gnu\.{re.escape(glibc[1])} ", steps) and f"--portable {glibc[1]} " in steps, steps
    release = (jobs.ROOT / "scripts/release.sh").read_text()
    assert re.search(r"^ *make .*packages ", release, re.M) and "cargo zigbuild" not in release


CARGO = """#!/bin/sh
# Stands in for cargo: `build` puts the files where cargo puts them.
if [ "$1" != build ]; then exec "$CARGO_ITSELF" "$@"; fi
to=$CARGO_TARGET_DIR/$CARGO_BUILD_TARGET/release
mkdir -p "$to"
cp "$FILES_OF_MAKE/libweft-fi.so" "$to/libweft_fi.so"
cp "$FILES_OF_MAKE/libweft-coll.so" "$to/libweft_coll.so"
cp "$FILES_OF_MAKE/weft" "$to/weft"
cp "$FILES_OF_MAKE/gex/libweft-gex.so" "$to/libweft_gex_c.so"
cp "$FILES_OF_MAKE/gex/libweft-gex.a" "$to/libweft_gex_c.a"
"""


def conda_outputs() -> dict[str, dict[str, Any]]:
    """The packages of conda's recipe, by name."""
    recipe = yaml.safe_load((jobs.ROOT / "packaging/conda/recipe.yaml").read_text())
    return {output["package"]["name"]: output for output in recipe["outputs"]}


def conda_contents(output: dict[str, Any]) -> set[str]:
    """The files that the test of a package expects."""
    return set(next(test["package_contents"]["files"] for test in output["tests"] if "package_contents" in test))


@pytest.mark.parametrize("name", ["weft-fabric", "weft-gasnet"])
def test_conda_recipe_honours_the_target(tmp_path: Path, name: str) -> None:
    """conda sets CARGO_BUILD_TARGET, with which cargo builds into another directory. Each package has its files."""
    (tmp_path / "bin").mkdir()
    stand_in = tmp_path / "bin/cargo"
    stand_in.write_text(CARGO)
    stand_in.chmod(0o755)
    cargo = shutil.which("cargo")
    assert cargo is not None
    triple = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
    env = {
        **os.environ,
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "PREFIX": f"{tmp_path}/prefix",
        "CARGO_BUILD_TARGET": next(line.split()[1] for line in triple.splitlines() if line.startswith("host:")),
        "CARGO_TARGET_DIR": f"{tmp_path}/target",
        "CARGO_ITSELF": cargo,
        "FILES_OF_MAKE": str(jobs.DIST),
    }
    output = conda_outputs()[name]
    for line in output["build"]["script"]:
        subprocess.run(["sh", "-euc", line], cwd=jobs.ROOT, env=env, check=True, timeout=60)
    installed = files(tmp_path / "prefix")
    assert installed == (installed_files("") if name == "weft-fabric" else gex_files(GEX))
    assert conda_contents(output) <= installed


WHEEL_JOBS = {
    "mpich": (jobs.MPICH, f"weft run --require -- mpiexec -n 2 python {PINGPONG}"),
    "open-mpi": (jobs.OPEN_MPI, f"weft run --require mpirun --allow-run-as-root --oversubscribe -n 2 python {PINGPONG}"),
    "intel-mpi": (jobs.INTEL_MPI, "weft run --require mpiexec -n 2 IMB-MPI1 PingPong -iter 20 -time 0.1"),
}


@pytest.mark.parametrize("name", WHEEL_JOBS)
def test_wheel_carries_a_job(runner: harness.Runner, packages: Path, name: str) -> None:
    """The wheel beside each MPI library's wheel: no path is set, since libfabric finds the provider by itself. Nothing
    is left after its removal."""
    venv, job = WHEEL_JOBS[name]
    wheel = next(packages.glob("weft_fabric-*.whl"))
    script = f"""
export PATH={venv}/bin:$PATH
python -m pip install --quiet --no-index {wheel}
{job}
{job.replace("--require", "--dry-run")} | sed 's/^/dry run: /'
python -m pip uninstall --quiet --yes weft-fabric
find {venv} -name '*weft*' -o -name 'libusnic-fi.so' | sed 's/^/left: /'
"""
    output = run_overlaid(runner, "venv", venv, script)
    assert CARRIED.search(output), output[-3000:]
    assert "dry run: " in output and "FI_PROVIDER_PATH" not in output and "left: " not in output, output[-3000:]


@pytest.mark.parametrize("name", ["mpich", "open-mpi"])
def test_wheels_need_no_variables(runner: harness.Runner, packages: Path, name: str) -> None:
    """Open MPI uses an installed weft without any setting, and mpi4py over MPICH does with the extra `auto`. Without the
    provider the extra sets nothing."""
    venv, launch = (jobs.MPICH, "mpiexec") if name == "mpich" else (jobs.OPEN_MPI, "mpirun --allow-run-as-root --oversubscribe")
    wheel = next(packages.glob("weft_fabric-*.whl"))
    wanted = f"--find-links {packages} 'weft-fabric[auto] @ file://{wheel}'" if name == "mpich" else str(wheel)
    script = f"""
export PATH={venv}/bin:$PATH
python -m pip install --quiet --no-index {wanted}
FI_WEFT_REPORT=1 {launch} -n 2 python {PINGPONG}
show() {{ python -c 'import os; print("'$1':", os.environ.get("FI_PROVIDER"))'; }}
show installed
python -m pip uninstall --quiet --yes weft-fabric
show removed
{launch} -n 2 python {PINGPONG} && echo without weft: good
"""
    output = run_overlaid(runner, "venv", venv, script)
    assert len(re.findall(r"^weft: rank \d of 2, .* sent [\d,]+ messages", output, re.M)) == 2, output[-3000:]
    assert f"installed: {'weft' if name == 'mpich' else None}\n" in output, output[-3000:]
    assert "removed: None\n" in output and "without weft: good\n" in output, output[-3000:]


def build_recipe(runner: harness.Runner, tmp_path: Path, commands: str, expected: set[str]) -> str:
    """Runs the commands of a recipe on the sources. They install the expected files, and the installed command finds its
    provider. Returns the output."""
    script = f"""
cd {jobs.ROOT}
export PREFIX={tmp_path} PATH={jobs.MPICH}/bin:$PATH
{commands}
cd {tmp_path}
find . -type f | sed 's/^/installed: /'
bin/weft --version
bin/weft run --dry-run {jobs.MPICH}/bin/mpiexec ./a.out
"""
    output = run_overlaid(runner, "venv", jobs.TARGET, script)
    assert set(re.findall(r"^installed: \./(.*)$", output, re.M)) == expected, output[-3000:]
    assert f"FI_PROVIDER_PATH={tmp_path}/lib/libfabric " in output, output[-3000:]
    return output


def test_conda_recipe_builds(runner: harness.Runner, tmp_path: Path) -> None:
    """The recipe's build script installs the files of `make install` without the library for GASNet clients."""
    commands = conda_outputs()["weft-fabric"]["build"]["script"]
    build_recipe(runner, tmp_path, "\n".join(commands), installed_files(""))


@pytest.mark.parametrize("variants", ["", "+gasnet"])
def test_spack_recipe_builds(runner: harness.Runner, tmp_path: Path, variants: str) -> None:
    """The recipe's install method, with a stand-in for Spack. A variant adds the library for GASNet clients."""
    recipe = jobs.ROOT / "packaging/spack/package.py"
    commands = f"python3 {harness.SUPPORT}/spack_recipe.py {recipe} {tmp_path} {variants}"
    expected = installed_files("") | (gex_files(GEX) if variants else set())
    output = build_recipe(runner, tmp_path, commands, expected)
    assert f"FI_PROVIDER_PATH={tmp_path}/lib/libfabric\n" in output, output[-3000:]


def test_container_copies_existing_files() -> None:
    """The container file copies files of the sources."""
    container = (jobs.ROOT / "packaging/container/Containerfile").read_text()
    copied = re.findall(r"^COPY (?!--from|target)(\S+)", container, re.MULTILINE)
    assert copied and all((jobs.ROOT / source).exists() for source in copied), copied


UNPACK = f"""
for package in {DEBIAN_PACKAGES}/*.deb; do
  dpkg-deb --fsys-tarfile $package | tar -x --keep-directory-symlink -C /
done
ldconfig
"""


def test_debian_package_is_found_by_libfabric(runner: harness.Runner, packages: Path) -> None:
    """dpkg installs the package, and libfabric lists the provider with nothing set."""
    package = next(packages.glob("weft_*.deb"))
    script = f"dpkg -i --force-depends {package} >/dev/null; fi_info -p weft; weft --version; dpkg -L weft"
    output = run_overlaid(runner, "system", jobs.ROOT, script)
    assert "provider: weft" in output and "/usr/share/man/man1/weft.1.gz" in output, output[-3000:]


def run_gex_program(runner: harness.Runner, before: str, prefix: str) -> str:
    """Compiles a GASNet client against an installation, and runs it as a job of two ranks. Returns the output."""
    script = f"""
{before}
export PKG_CONFIG_PATH={prefix}/lib/pkgconfig
cc -o /tmp/job {jobs.ROOT}/tests/gex/abi_job.c $(pkg-config --cflags --libs gasnet-smp-seq)
{prefix}/bin/gasnetrun_smp -n 2 /tmp/job
"""
    output = run_overlaid(runner, "system", jobs.ROOT, script)
    assert len(re.findall(r"\b\d+ checks, 0 failures", output)) == 2, output[-3000:]
    return output


def test_gasnet_archive_carries_a_job(runner: harness.Runner, packages: Path) -> None:
    """The archive of the library for GASNet clients holds its files, and works where it is unpacked."""
    archive = next(packages.glob("weft-gasnet-*-linux.tar.xz"))
    top = archive.name.removesuffix(".tar.xz")
    with tarfile.open(archive) as opened:
        names = {entry.name for entry in opened if entry.isfile()}
    doc = f"{top}/share/doc/weft-gasnet/"
    documents = {doc + name for name in ["LICENSE", "THIRD-PARTY", "CHANGELOG.md", "gasnet.md"]}
    assert names == gex_files(f"{top}/") | documents
    run_gex_program(runner, f"tar -C /tmp -xf {archive}", f"/tmp/{top}")


def test_gasnet_debian_package_carries_a_job(runner: harness.Runner, packages: Path) -> None:
    """dpkg installs the library for GASNet clients, and pkg-config files name its place."""
    package = next(packages.glob("weft-gasnet_*.deb"))
    listing = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(package)], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(listing)) as archive:
        names = {entry.name.removeprefix("./") for entry in archive if entry.isfile()}
    doc = "usr/share/doc/weft-gasnet/"
    assert names == gex_files(f"usr/{GEX}") | {doc + name for name in ["copyright", "changelog.gz", "gasnet.md"]}
    before = f"dpkg -i --force-depends {package} >/dev/null; grep '^GASNET_PREFIX' /usr/{GEX}lib/pkgconfig/gasnet-smp-par.pc"
    output = run_gex_program(runner, before, f"/usr/{GEX}".rstrip("/"))
    assert "GASNET_PREFIX=/usr/lib/weft/gex\n" in output, output[-3000:]


def need_debian_packages() -> None:
    """Skips if the packages of Debian's MPI libraries are not in the cache."""
    if not list(DEBIAN_PACKAGES.glob("openmpi-bin_*.deb")):
        pytest.skip(f"{DEBIAN_PACKAGES} has no packages of Debian: make deps")


def test_debian_open_mpi_runs_over_the_package(runner: harness.Runner, packages: Path) -> None:
    """Debian's Open MPI 4.1 finds the installed provider."""
    need_debian_packages()
    script = f"""{UNPACK}
dpkg -i --force-depends {next(packages.glob("weft_*.deb"))} >/dev/null
cc -I/usr/lib/x86_64-linux-gnu/openmpi/include -o /tmp/ring {harness.PROGRAMS}/ring.c -l:libmpi.so.40
weft run --require mpirun.openmpi --allow-run-as-root --oversubscribe -n 2 /tmp/ring
weft run --dry-run mpirun.openmpi -n 2 /tmp/ring
"""
    output = run_overlaid(runner, "system", jobs.ROOT, script)
    assert "ring of 2 ranks: 190" in output and CARRIED.search(output), output[-3000:]
    assert "FI_PROVIDER=weft" in output and "FI_PROVIDER_PATH" not in output, output[-3000:]


def test_debian_mpich_is_refused_with_the_way_that_works(runner: harness.Runner) -> None:
    """Debian's MPICH has no libfabric. The command says so, and its remedy works."""
    need_debian_packages()
    venv = jobs.MPICH
    script = f"""{UNPACK}
cc -I/usr/include/x86_64-linux-gnu/mpich -o /tmp/ring {harness.PROGRAMS}/ring.c -l:libmpich.so.12
{jobs.DIST}/weft run --require mpiexec.mpich -n 2 /tmp/ring && exit 1
mkdir /tmp/dir && ln -s {venv}/lib/libmpi.so.12 /tmp/dir/libmpich.so.12
LD_LIBRARY_PATH=/tmp/dir:{venv}/lib:{venv}/lib/mpich {jobs.DIST}/weft run --require {venv}/bin/mpiexec -n 2 /tmp/ring
"""
    output = run_overlaid(runner, "system", jobs.ROOT, script)
    assert "is an MPICH without libfabric (ch4:ucx)" in output and output.count("ring of 2 ranks: 190") == 1, output
    assert CARRIED.search(output), output[-3000:]


def test_slurm_starts_ranks_over_weft(runner: harness.Runner, packages: Path) -> None:
    """`weft run srun`: MPICH's wheel by PMI-2, and Debian's Open MPI by PMIx, whose lines are marked with the rank."""
    need_debian_packages()
    if not list(DEBIAN_PACKAGES.glob("slurmd_*.deb")):
        pytest.skip("the cache has no Slurm: make deps")
    jobs_of_both = f"""
set -e
weft run --require srun --mpi=pmi2 -n 2 {harness.PYTHON} {PINGPONG}
weft run --require srun -l --mpi=pmix -n 2 /tmp/ring
"""
    script = f"""{UNPACK}
dpkg -i --force-depends {next(packages.glob("weft_*.deb"))} >/dev/null
cc -I/usr/lib/x86_64-linux-gnu/openmpi/include -o /tmp/ring {harness.PROGRAMS}/ring.c -l:libmpi.so.40
exec {harness.SUPPORT}/slurm.sh bash -euc '{jobs_of_both}'
"""
    output = run_overlaid(runner, "system", jobs.ROOT, script)
    assert len(CARRIED.findall(output)) == 2 and "1: ring of 2 ranks: 190" in output, output[-3000:]
