# Spack's recipe: copy it to a repository as packages/weft/package.py.
# The checksum belongs to the source archive of the release (SHA256SUMS).

from spack.package import *


class Weft(Package):
    """A libfabric provider for shared memory and TCP. MPICH, Open MPI and Intel MPI run over it unmodified."""

    homepage = "https://example.invalid/weft"
    url = "https://example.invalid/weft/releases/download/v0.1.0/weft-0.1.0.tar.xz"

    license("BSD-2-Clause")

    variant("gasnet", default=True, description="library that is compatible with the GASNet-EX API, in lib/weft/gex")

    version("0.1.0", sha256="0000000000000000000000000000000000000000000000000000000000000000")

    depends_on("c", type="build")
    depends_on("rust@1.88:", type="build")
    depends_on("gmake", type="build")
    depends_on("python@3.8:", type="build")
    depends_on("libfabric@1.17:", type="run")

    def install(self, spec, prefix):
        make("dist")
        # An empty directory leaves the library for GASNet clients out.
        without = [] if spec.satisfies("+gasnet") else ["GEX_DIR="]
        make("install", "PREFIX={0}".format(prefix), *without)

    def setup_run_environment(self, env):
        # libfabric searches its own prefix only.
        env.prepend_path("FI_PROVIDER_PATH", self.prefix.lib.libfabric)
