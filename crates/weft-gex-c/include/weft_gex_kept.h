/* Calls that GASNet-EX keeps from GASNet-1, locks, and polling. Included by gasnetex.h. */
#ifndef WEFT_GEX_KEPT_H
#define WEFT_GEX_KEPT_H

GEX_WEFT_BEGIN_C

extern GEX_WEFT_NORETURN void gasnet_exit(int code);
extern int gasnet_AMPoll(void);
extern int gasnet_set_waitmode(int mode);
extern char *gasnet_getenv(const char *name);
extern const char *gasnet_ErrorName(int error);
extern const char *gasnet_ErrorDesc(int error);
extern int gasnet_getSegmentInfo(gasnet_seginfo_t *table, int count);
extern int gasnet_getNodeInfo(gasnet_nodeinfo_t *table, int count);

/* Split-phase barriers of the job. */
extern void gasnet_barrier_notify(int id, int flags);
extern int gasnet_barrier_wait(int id, int flags);
extern int gasnet_barrier_try(int id, int flags);
extern int gasnet_barrier(int id, int flags);
extern int gasnet_barrier_result(int *id);

/* Called on a segment before it is registered, if it is not NULL. */
extern void (*gasnet_client_attach_hook)(void *address, uintptr_t size);

/* Polls once. `idle` counts consecutive calls by one wait; the call yields or sleeps as the wait mode says. */
extern void gex_weft_WaitStep(unsigned int *idle);

/* Polls until the condition holds. Reads after it see what was written before the condition became true. */
#define GASNET_BLOCKUNTIL(condition)                                                                                   \
  do {                                                                                                                 \
    unsigned int gex_weft_idle = 0;                                                                                    \
    while (!(condition)) gex_weft_WaitStep(&gex_weft_idle);                                                            \
    __atomic_thread_fence(__ATOMIC_ACQUIRE);                                                                           \
  } while (0)

/* Threads need no information passed along. The first is a declaration, so that others may follow it. */
#define GASNET_BEGIN_FUNCTION() struct gex_weft_no_threadinfo
#define GASNET_POST_THREADINFO(info) struct gex_weft_no_threadinfo
#define GASNET_GET_THREADINFO() ((void *)0)

/* Locks that handlers may take. In SEQ without checks no two holders can meet. */
#if defined(GASNET_SEQ) && defined(GASNET_NDEBUG)
GEX_WEFT_INLINE void gex_HSL_Init(gex_HSL_t *hsl) { (void)hsl; }
GEX_WEFT_INLINE void gex_HSL_Destroy(gex_HSL_t *hsl) { (void)hsl; }
GEX_WEFT_INLINE void gex_HSL_Lock(gex_HSL_t *hsl) { (void)hsl; }
GEX_WEFT_INLINE void gex_HSL_Unlock(gex_HSL_t *hsl) { (void)hsl; }
GEX_WEFT_INLINE int gex_HSL_Trylock(gex_HSL_t *hsl) {
  (void)hsl;
  return GASNET_OK;
}
#else
extern void gex_HSL_Init(gex_HSL_t *hsl);
extern void gex_HSL_Destroy(gex_HSL_t *hsl);
extern void gex_HSL_Lock(gex_HSL_t *hsl);
extern void gex_HSL_Unlock(gex_HSL_t *hsl);
extern int gex_HSL_Trylock(gex_HSL_t *hsl);
#endif

GEX_WEFT_END_C

#endif
