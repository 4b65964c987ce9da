/* Endpoints with progress of their own. Included by gasnet_weft.h. */
#ifndef WEFT_GEX_X_ENDPOINT_H
#define WEFT_GEX_X_ENDPOINT_H

/* gex_EP_Create takes all capabilities. An endpoint with GEX_EP_CAPABILITY_AM has handlers, links and progress of its
 * own, and gex_TM_Create makes teams of any endpoints. */
#define GEXW_SUPPORTS_EP_PROGRESS 1

/* A flag of gex_EP_Create: one thread at a time uses the endpoint. It has no lock, and gasnet_AMPoll does not poll it. */
#define GEXW_FLAG_EP_SERIAL GEX_WEFT_FLAG(25)

GEX_WEFT_BEGIN_C

/* Polls the endpoint alone. One without GEX_EP_CAPABILITY_AM is polled by gasnet_AMPoll. */
extern int gexw_EP_Poll(gex_EP_t ep, gex_Flags_t flags);

/* Ends an endpoint of gex_EP_Create, after its messages have left. No operation of it may be under way, and its teams
 * are destroyed before. Its segment stays. */
extern int gexw_EP_Destroy(gex_EP_t ep, gex_Flags_t flags);

/* Polls once, then pauses as `idle`, the number of idle calls so far, and the wait mode say. Returns the next `idle`. */
extern uint32_t gexw_EP_WaitStep(gex_EP_t ep, uint32_t idle);

/* GASNET_BLOCKUNTIL that polls one endpoint. */
#define GEXW_EP_BLOCKUNTIL(ep, condition)                                                                              \
  do {                                                                                                                 \
    uint32_t gexw_idle = 0;                                                                                            \
    while (!(condition)) gexw_idle = gexw_EP_WaitStep(ep, gexw_idle);                                                  \
    __atomic_thread_fence(__ATOMIC_ACQUIRE);                                                                           \
  } while (0)

GEX_WEFT_END_C

#endif
