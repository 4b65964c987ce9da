/* The GASNet-1 interface, as a layer over GASNet-EX.
 *
 * The library has its start (gasnet_init, gasnet_attach) and the objects that it creates. All other calls are inline. */
#ifndef GASNET_H
#define GASNET_H
/* Clients test this name. */
#define _INCLUDED_GASNET_H

#include "gasnetex.h"
#include "gasnet_coll.h"
#include "gasnet_vis.h"

#include "weft_gex_one_types.h"
#include "weft_gex_one_am.h"
#include "weft_gex_one_rma.h"
#include "weft_gex_one_vis.h"

#endif
