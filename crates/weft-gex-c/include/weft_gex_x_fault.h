/* The failure of ranks.
 *
 * Without a handler, the death of a rank ends the job. If all ranks of a host have set one, those that are left go on. */
#ifndef WEFT_GEX_X_FAULT_H
#define WEFT_GEX_X_FAULT_H

#include "gasnetex.h"

#define GEXW_SUPPORTS_FAULT 1

GEX_WEFT_BEGIN_C

/* Gets the number in the job of a rank that has failed. It runs once for each such rank, in a call that polls. It may
 * call what handlers of Active Messages may, but not reply. */
typedef void (*gexw_FailureFn_t)(gex_Rank_t jobrank);

/* Sets the handler of this rank. NULL: the death of a rank ends the job again. */
extern void gexw_System_SetFailureHandler(gexw_FailureFn_t fn);

/* Whether this rank knows that a rank of the job has failed. */
extern int gexw_System_HasFailed(gex_Rank_t jobrank);

GEX_WEFT_END_C

#endif
