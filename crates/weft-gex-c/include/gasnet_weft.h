/* Extensions of weft. Their names begin with gexw_ and GEXW_, so that later names of the interface cannot collide.
 *
 * Each extension that exists is announced by a define of its own here. So far there is none; WEFT_GEX, in gasnet_fwd.h,
 * tells weft from other implementations. */
#ifndef GASNET_WEFT_H
#define GASNET_WEFT_H

#include "gasnet_fwd.h"

#endif
