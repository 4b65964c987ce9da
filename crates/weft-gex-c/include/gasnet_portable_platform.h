/* Facts of the platform and the compiler, for clients that include this file alone. */
#ifndef GASNET_PORTABLE_PLATFORM_H
#define GASNET_PORTABLE_PLATFORM_H

#include "weft_gex_base.h"
#include "gasnet_fwd.h"
#include "weft_gex_tools_words.h"

#endif
