/* The GASNet-EX interface of weft, except atomics, vector accesses, further collectives and memory kinds.
 *
 * Compile with the flags of a makefile fragment or pkg-config file: they select the mode and the conduit. */
#ifndef GASNETEX_H
#define GASNETEX_H

#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(GASNET_PAR) || defined(GEXW_RCV_THREAD)
#include <pthread.h>
#endif

#include "weft_gex_base.h"
#include "gasnet_fwd.h"
#include "weft_gex_config.h"
#include "gasnet_tools.h"
#include "weft_gex_types.h"
#include "weft_gex_job.h"
#include "weft_gex_am.h"
#include "weft_gex_rma.h"
#include "weft_gex_fast.h"
#include "weft_gex_kept.h"

#endif
