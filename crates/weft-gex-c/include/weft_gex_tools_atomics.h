/* Tools: fences and atomics, by the compiler's own. Included by gasnet_tools.h. */
#ifndef WEFT_GEX_TOOLS_ATOMICS_H
#define WEFT_GEX_TOOLS_ATOMICS_H

/* Fences. Those of C++11's memory model suffice, because a write is never paired with a read of another kind. */
#define gasnett_compiler_fence() __atomic_signal_fence(__ATOMIC_SEQ_CST)
#define gasnett_local_wmb() __atomic_thread_fence(__ATOMIC_RELEASE)
#define gasnett_local_rmb() __atomic_thread_fence(__ATOMIC_ACQUIRE)
#define gasnett_local_mb() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#ifdef GASNET_SEQ
#define gasnett_weak_wmb() ((void)0)
#define gasnett_weak_rmb() ((void)0)
#define gasnett_weak_mb() ((void)0)
#else
#define gasnett_weak_wmb() gasnett_local_wmb()
#define gasnett_weak_rmb() gasnett_local_rmb()
#define gasnett_weak_mb() gasnett_local_mb()
#endif

/* Fences before and after an atomic. */
#define GASNETT_ATOMIC_NONE 0
#define GASNETT_ATOMIC_WMB_PRE (1 << 0)
#define GASNETT_ATOMIC_RMB_PRE (1 << 1)
#define GASNETT_ATOMIC_MB_PRE (GASNETT_ATOMIC_WMB_PRE | GASNETT_ATOMIC_RMB_PRE)
#define GASNETT_ATOMIC_WMB_POST (1 << 2)
#define GASNETT_ATOMIC_RMB_POST (1 << 3)
#define GASNETT_ATOMIC_MB_POST (GASNETT_ATOMIC_WMB_POST | GASNETT_ATOMIC_RMB_POST)
#define GASNETT_ATOMIC_REL (1 << 4)
#define GASNETT_ATOMIC_ACQ (1 << 5)
#define GASNETT_ATOMIC_RMB_POST_IF_TRUE (1 << 6)
#define GASNETT_ATOMIC_RMB_POST_IF_FALSE (1 << 7)
#define GASNETT_ATOMIC_ACQ_IF_TRUE GASNETT_ATOMIC_RMB_POST_IF_TRUE
#define GASNETT_ATOMIC_ACQ_IF_FALSE GASNETT_ATOMIC_RMB_POST_IF_FALSE

GEX_WEFT_INLINE void gex_weft_fence_before(int flags) {
  if ((flags & GASNETT_ATOMIC_MB_PRE) == GASNETT_ATOMIC_MB_PRE) {
    gasnett_local_mb();
  } else {
    if (flags & (GASNETT_ATOMIC_WMB_PRE | GASNETT_ATOMIC_REL)) gasnett_local_wmb();
    if (flags & GASNETT_ATOMIC_RMB_PRE) gasnett_local_rmb();
  }
}
GEX_WEFT_INLINE void gex_weft_fence_after(int flags, int result) {
  const int conditional = result ? GASNETT_ATOMIC_RMB_POST_IF_TRUE : GASNETT_ATOMIC_RMB_POST_IF_FALSE;
  if ((flags & GASNETT_ATOMIC_MB_POST) == GASNETT_ATOMIC_MB_POST) {
    gasnett_local_mb();
  } else {
    if (flags & GASNETT_ATOMIC_WMB_POST) gasnett_local_wmb();
    if (flags & (GASNETT_ATOMIC_RMB_POST | GASNETT_ATOMIC_ACQ | conditional)) gasnett_local_rmb();
  }
}

/* The calls of one kind of atomic. Sums and differences return the new value, swaps the old one. */
#define GEX_WEFT_ATOMIC(name, value_t, signed_t)                                                                       \
  typedef struct {                                                                                                     \
    volatile value_t gex_weft_value;                                                                                   \
  } gasnett_##name##_t;                                                                                                \
  GEX_WEFT_INLINE value_t gasnett_##name##_read(gasnett_##name##_t *p, int flags) {                                    \
    value_t value;                                                                                                     \
    gex_weft_fence_before(flags);                                                                                      \
    value = __atomic_load_n(&p->gex_weft_value, __ATOMIC_RELAXED);                                                     \
    gex_weft_fence_after(flags, 0);                                                                                    \
    return value;                                                                                                      \
  }                                                                                                                    \
  GEX_WEFT_INLINE void gasnett_##name##_set(gasnett_##name##_t *p, value_t value, int flags) {                         \
    gex_weft_fence_before(flags);                                                                                      \
    __atomic_store_n(&p->gex_weft_value, value, __ATOMIC_RELAXED);                                                     \
    gex_weft_fence_after(flags, 0);                                                                                    \
  }                                                                                                                    \
  GEX_WEFT_INLINE value_t gasnett_##name##_add(gasnett_##name##_t *p, value_t operand, int flags) {                    \
    value_t value;                                                                                                     \
    gex_weft_fence_before(flags);                                                                                      \
    value = __atomic_add_fetch(&p->gex_weft_value, operand, __ATOMIC_RELAXED);                                         \
    gex_weft_fence_after(flags, 0);                                                                                    \
    return value;                                                                                                      \
  }                                                                                                                    \
  GEX_WEFT_INLINE value_t gasnett_##name##_subtract(gasnett_##name##_t *p, value_t operand, int flags) {               \
    return gasnett_##name##_add(p, (value_t)((value_t)0 - operand), flags);                                            \
  }                                                                                                                    \
  GEX_WEFT_INLINE void gasnett_##name##_increment(gasnett_##name##_t *p, int flags) {                                  \
    (void)gasnett_##name##_add(p, (value_t)1, flags);                                                                  \
  }                                                                                                                    \
  GEX_WEFT_INLINE void gasnett_##name##_decrement(gasnett_##name##_t *p, int flags) {                                  \
    (void)gasnett_##name##_subtract(p, (value_t)1, flags);                                                             \
  }                                                                                                                    \
  GEX_WEFT_INLINE int gasnett_##name##_decrement_and_test(gasnett_##name##_t *p, int flags) {                          \
    int zero;                                                                                                          \
    gex_weft_fence_before(flags);                                                                                      \
    zero = !__atomic_sub_fetch(&p->gex_weft_value, (value_t)1, __ATOMIC_RELAXED);                                      \
    gex_weft_fence_after(flags, zero);                                                                                 \
    return zero;                                                                                                       \
  }                                                                                                                    \
  GEX_WEFT_INLINE int gasnett_##name##_compare_and_swap(gasnett_##name##_t *p, value_t before, value_t after,          \
                                                        int flags) {                                                   \
    int done;                                                                                                          \
    gex_weft_fence_before(flags);                                                                                      \
    done = __atomic_compare_exchange_n(&p->gex_weft_value, &before, after, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);     \
    gex_weft_fence_after(flags, done);                                                                                 \
    return done;                                                                                                       \
  }                                                                                                                    \
  GEX_WEFT_INLINE value_t gasnett_##name##_swap(gasnett_##name##_t *p, value_t value, int flags) {                     \
    value_t old;                                                                                                       \
    gex_weft_fence_before(flags);                                                                                      \
    old = __atomic_exchange_n(&p->gex_weft_value, value, __ATOMIC_RELAXED);                                            \
    gex_weft_fence_after(flags, 0);                                                                                    \
    return old;                                                                                                        \
  }                                                                                                                    \
  GEX_WEFT_INLINE signed_t gasnett_##name##_signed(value_t value) { return (signed_t)value; }

GEX_WEFT_BEGIN_C
GEX_WEFT_ATOMIC(atomic, uint32_t, int32_t)
GEX_WEFT_ATOMIC(atomic32, uint32_t, int32_t)
GEX_WEFT_ATOMIC(atomic64, uint64_t, int64_t)
GEX_WEFT_ATOMIC(strongatomic, uint32_t, int32_t)
GEX_WEFT_ATOMIC(strongatomic32, uint32_t, int32_t)
GEX_WEFT_ATOMIC(strongatomic64, uint64_t, int64_t)
GEX_WEFT_END_C
#undef GEX_WEFT_ATOMIC

typedef uint32_t gasnett_atomic_val_t;
typedef int32_t gasnett_atomic_sval_t;
typedef uint32_t gasnett_strongatomic_val_t;
typedef int32_t gasnett_strongatomic_sval_t;

/* clang-format off */
#define gasnett_atomic_init(value) { (value) }
#define gasnett_atomic32_init(value) { (value) }
#define gasnett_atomic64_init(value) { (value) }
#define gasnett_strongatomic_init(value) { (value) }
#define gasnett_strongatomic32_init(value) { (value) }
#define gasnett_strongatomic64_init(value) { (value) }
/* clang-format on */

#define GASNETT_ATOMIC_MAX ((gasnett_atomic_val_t)UINT32_MAX)
#define GASNETT_ATOMIC_SIGNED_MIN ((gasnett_atomic_sval_t)INT32_MIN)
#define GASNETT_ATOMIC_SIGNED_MAX ((gasnett_atomic_sval_t)INT32_MAX)
#define GASNETT_STRONGATOMIC_MAX GASNETT_ATOMIC_MAX
#define GASNETT_STRONGATOMIC_SIGNED_MIN GASNETT_ATOMIC_SIGNED_MIN
#define GASNETT_STRONGATOMIC_SIGNED_MAX GASNETT_ATOMIC_SIGNED_MAX

#define GASNETT_HAVE_ATOMIC_CAS 1
#define GASNETT_HAVE_ATOMIC_ADD_SUB 1
#define GASNETT_HAVE_ATOMIC32_CAS 1
#define GASNETT_HAVE_ATOMIC32_ADD_SUB 1
#define GASNETT_HAVE_ATOMIC64_CAS 1
#define GASNETT_HAVE_ATOMIC64_ADD_SUB 1
#define GASNETT_HAVE_STRONGATOMIC_CAS 1
#define GASNETT_HAVE_STRONGATOMIC_ADD_SUB 1
#define GASNETT_HAVE_STRONGATOMIC32_CAS 1
#define GASNETT_HAVE_STRONGATOMIC32_ADD_SUB 1
#define GASNETT_HAVE_STRONGATOMIC64_CAS 1
#define GASNETT_HAVE_STRONGATOMIC64_ADD_SUB 1

#endif
