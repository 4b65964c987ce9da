"""Defaults by which MPI libraries use weft, for every Python process of this environment (weft-fabric[auto]).

`weft_fabric_auto.pth` imports this module when Python starts, before mpi4py loads an MPI library. Variables that are
set keep their values.
"""

import os

for _name, _value in {
    "FI_PROVIDER": "weft",
    "MPIR_CVAR_CH4_NETMOD": "ofi",
    "MPIR_CVAR_NOLOCAL": "1",
    "I_MPI_FABRICS": "ofi",
}.items():
    os.environ.setdefault(_name, _value)
