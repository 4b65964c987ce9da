/* Operations that start when others are complete, and how operations ended. Included by gasnet_weft.h. */
#ifndef WEFT_GEX_X_AFTER_H
#define WEFT_GEX_X_AFTER_H

#define GEXW_SUPPORTS_AFTER_NEXT 1

GEX_WEFT_BEGIN_C

/* The next access, atomic operation or request of this thread starts when all `deps` are complete. The call that starts
 * it returns at once, with an event that is valid at once. The events of `deps` still belong to the caller. `flags` is 0. */
extern void gexw_AfterNext(const gex_Event_t *deps, size_t count, gex_Flags_t flags);

/* GASNET_OK: complete. GASNET_ERR_NOT_READY: under way. GASNET_ERR_RESOURCE: failed, or cancelled because an operation
 * that it was to follow has failed. The event stays valid. */
extern int gexw_Event_Status(gex_Event_t event);
/* Waits for the event, and consumes it. Returns its last status. */
extern int gexw_Event_Wait(gex_Event_t event);

GEX_WEFT_END_C

#endif
