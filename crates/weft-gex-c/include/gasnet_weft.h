/* Extensions of weft: what the interface names and leaves open, and calls of weft's own.
 *
 * Their names begin with gexw_ and GEXW_, so that later names of the interface cannot collide. WEFT_GEX, in
 * gasnet_fwd.h, tells weft from other implementations. Each header below announces its extension by a define
 * GEXW_SUPPORTS_<NAME>. docs/gasnet.md describes each under "Beyond the document". */
#ifndef GASNET_WEFT_H
#define GASNET_WEFT_H

#include "gasnetex.h"

#include "weft_gex_x_after.h"
#include "weft_gex_x_coll.h"
#include "weft_gex_x_endpoint.h"
#include "weft_gex_x_fault.h"
#include "weft_gex_x_memory.h"
#include "weft_gex_x_signal.h"

#endif
