"""Defaults by which MPI libraries use weft, for every Python process of this environment (weft-fabric[auto]).

`weft_fabric_auto.pth` imports this module when Python starts, before mpi4py loads an MPI library. Variables that are
set keep their values. Nothing is set unless the provider of weft-fabric is installed: with FI_PROVIDER=weft alone, an
MPI library would find no provider.
"""

import os
import sys


def _installed() -> bool:
    """Whether the provider lies in the prefix of this module (PREFIX/lib/pythonX.Y/site-packages) or of Python."""
    own = os.path.abspath(__file__)
    for _ in range(4):
        own = os.path.dirname(own)
    return any(os.path.exists(os.path.join(prefix, "lib/weft/libweft-fi.so")) for prefix in (own, sys.prefix))


if _installed():
    for _name, _value in {
        "FI_PROVIDER": "weft",
        "MPIR_CVAR_CH4_NETMOD": "ofi",
        "MPIR_CVAR_NOLOCAL": "1",
        "I_MPI_FABRICS": "ofi",
    }.items():
        os.environ.setdefault(_name, _value)
