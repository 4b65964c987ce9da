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

/* Polls once, then pauses as `idle`, the number of idle calls so far, and the wait mode say. Returns the next `idle`. */
extern uint32_t gex_weft_WaitStep(uint32_t idle);

/* Polls until the condition holds. Reads after it see what was written before the condition became true. */
#define GASNET_BLOCKUNTIL(condition)                                                                                   \
  do {                                                                                                                 \
    uint32_t gex_weft_idle = 0;                                                                                        \
    while (!(condition)) gex_weft_idle = gex_weft_WaitStep(gex_weft_idle);                                             \
    __atomic_thread_fence(__ATOMIC_ACQUIRE);                                                                           \
  } while (0)

/* Threads need no information passed along. The first two are declarations, so that others may follow them. */
typedef void *gasnet_threadinfo_t;
#define GASNET_BEGIN_FUNCTION() struct gex_weft_no_threadinfo
#define GASNET_POST_THREADINFO(info) gasnet_threadinfo_t gex_weft_threadinfo __attribute__((__unused__)) = (info)
#define GASNET_GET_THREADINFO() ((gasnet_threadinfo_t)0)

/* Locks that handlers may take. */
#if GASNET_HIDDEN_AM_CONCURRENCY_LEVEL
GEX_WEFT_INLINE void gex_HSL_Init(gex_HSL_t *hsl) { (void)pthread_mutex_init(&hsl->gex_weft_mutex, NULL); }
GEX_WEFT_INLINE void gex_HSL_Destroy(gex_HSL_t *hsl) { (void)pthread_mutex_destroy(&hsl->gex_weft_mutex); }
GEX_WEFT_INLINE void gex_HSL_Lock(gex_HSL_t *hsl) { (void)pthread_mutex_lock(&hsl->gex_weft_mutex); }
GEX_WEFT_INLINE void gex_HSL_Unlock(gex_HSL_t *hsl) { (void)pthread_mutex_unlock(&hsl->gex_weft_mutex); }
GEX_WEFT_INLINE int gex_HSL_Trylock(gex_HSL_t *hsl) {
  return pthread_mutex_trylock(&hsl->gex_weft_mutex) ? GASNET_ERR_NOT_READY : GASNET_OK;
}
#else
GEX_WEFT_INLINE void gex_HSL_Init(gex_HSL_t *hsl) { (void)hsl; }
GEX_WEFT_INLINE void gex_HSL_Destroy(gex_HSL_t *hsl) { (void)hsl; }
GEX_WEFT_INLINE void gex_HSL_Lock(gex_HSL_t *hsl) { (void)hsl; }
GEX_WEFT_INLINE void gex_HSL_Unlock(gex_HSL_t *hsl) { (void)hsl; }
GEX_WEFT_INLINE int gex_HSL_Trylock(gex_HSL_t *hsl) {
  (void)hsl;
  return GASNET_OK;
}
#endif

GEX_WEFT_END_C

#endif
