/* Tools that need no job: clocks, fences, atomics, locks, the environment, numbers as text, attributes.
 *
 * This header can be used alone. In GASNET_SEQ, locks are empty; otherwise they are those of pthreads. */
#ifndef GASNET_TOOLS_H
#define GASNET_TOOLS_H
/* Clients test this name. */
#define _INCLUDED_GASNET_TOOLS_H

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#ifndef GASNET_SEQ
#include <pthread.h>
#endif

#include "weft_gex_base.h"
#include "gasnet_fwd.h"
#include "weft_gex_tools_words.h"
#include "weft_gex_tools_calls.h"
#include "weft_gex_tools_atomics.h"
#include "weft_gex_tools_locks.h"
#include "weft_gex_tools_trace.h"

#endif
