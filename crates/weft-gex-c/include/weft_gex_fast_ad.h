/* Atomic operations on memory of the host that need no call of the library. Included by gasnet_ratomic.h.
 *
 * These are the operations that are one instruction, on integers. Others, and all that go elsewhere, call the function. */
#ifndef WEFT_GEX_FAST_AD_H
#define WEFT_GEX_FAST_AD_H

/* The beginning of an atomic domain. */
typedef struct {
  gex_TM_t tm;
  gex_DT_t dt;
} gex_weft_domain_t;

#define GEX_WEFT_FAST_AD(name, type)                                                                                   \
  GEX_WEFT_INLINE int gex_weft_ad_##name(gex_AD_t ad, type *result, gex_Rank_t rank, void *target, gex_OP_t op,        \
                                         type operand1, gex_Flags_t flags) {                                           \
    const gex_weft_domain_t *domain = (const gex_weft_domain_t *)(const void *)ad;                                     \
    type *here;                                                                                                        \
    if (domain == NULL || domain->dt != GEX_DT_##name) return 0;                                                       \
    if (flags & (GEX_FLAG_RANK_IS_JOBRANK | GEX_FLAG_SELF_SEG_OFFSET)) return 0;                                       \
    here = (type *)gex_weft_here(domain->tm, rank, target, sizeof(type), flags);                                       \
    if (here == NULL || (uintptr_t)here % sizeof(type) != 0) return 0;                                                 \
    if (op == GEX_OP_FADD) *result = __atomic_fetch_add(here, operand1, __ATOMIC_ACQ_REL);                             \
    else if (op == GEX_OP_ADD) (void)__atomic_fetch_add(here, operand1, __ATOMIC_ACQ_REL);                             \
    else if (op == GEX_OP_GET) *result = __atomic_load_n(here, __ATOMIC_ACQUIRE);                                      \
    else if (op == GEX_OP_FINC) *result = __atomic_fetch_add(here, 1, __ATOMIC_ACQ_REL);                               \
    else if (op == GEX_OP_INC) (void)__atomic_fetch_add(here, 1, __ATOMIC_ACQ_REL);                                    \
    else if (op == GEX_OP_SWAP) *result = __atomic_exchange_n(here, operand1, __ATOMIC_ACQ_REL);                       \
    else return 0;                                                                                                     \
    return 1;                                                                                                          \
  }                                                                                                                    \
  GEX_WEFT_INLINE gex_Event_t gex_weft_ad_nb_##name(gex_AD_t ad, type *result, gex_Rank_t rank, void *target,          \
                                                    gex_OP_t op, type operand1, type operand2, gex_Flags_t flags) {    \
    if (gex_weft_ad_##name(ad, result, rank, target, op, operand1, flags)) return GEX_EVENT_INVALID;                   \
    return gex_AD_OpNB_##name(ad, result, rank, target, op, operand1, operand2, flags);                                \
  }                                                                                                                    \
  GEX_WEFT_INLINE int gex_weft_ad_nbi_##name(gex_AD_t ad, type *result, gex_Rank_t rank, void *target, gex_OP_t op,    \
                                             type operand1, type operand2, gex_Flags_t flags) {                        \
    if (gex_weft_ad_##name(ad, result, rank, target, op, operand1, flags)) return 0;                                   \
    return gex_AD_OpNBI_##name(ad, result, rank, target, op, operand1, operand2, flags);                               \
  }
GEX_WEFT_FAST_AD(I32, int32_t)
GEX_WEFT_FAST_AD(U32, uint32_t)
GEX_WEFT_FAST_AD(I64, int64_t)
GEX_WEFT_FAST_AD(U64, uint64_t)
#undef GEX_WEFT_FAST_AD

#define gex_AD_OpNB_I32(ad, result, rank, target, op, one, two, flags)                                                 \
  gex_weft_ad_nb_I32(ad, result, rank, target, op, one, two, flags)
#define gex_AD_OpNB_U32(ad, result, rank, target, op, one, two, flags)                                                 \
  gex_weft_ad_nb_U32(ad, result, rank, target, op, one, two, flags)
#define gex_AD_OpNB_I64(ad, result, rank, target, op, one, two, flags)                                                 \
  gex_weft_ad_nb_I64(ad, result, rank, target, op, one, two, flags)
#define gex_AD_OpNB_U64(ad, result, rank, target, op, one, two, flags)                                                 \
  gex_weft_ad_nb_U64(ad, result, rank, target, op, one, two, flags)
#define gex_AD_OpNBI_I32(ad, result, rank, target, op, one, two, flags)                                                \
  gex_weft_ad_nbi_I32(ad, result, rank, target, op, one, two, flags)
#define gex_AD_OpNBI_U32(ad, result, rank, target, op, one, two, flags)                                                \
  gex_weft_ad_nbi_U32(ad, result, rank, target, op, one, two, flags)
#define gex_AD_OpNBI_I64(ad, result, rank, target, op, one, two, flags)                                                \
  gex_weft_ad_nbi_I64(ad, result, rank, target, op, one, two, flags)
#define gex_AD_OpNBI_U64(ad, result, rank, target, op, one, two, flags)                                                \
  gex_weft_ad_nbi_U64(ad, result, rank, target, op, one, two, flags)

#endif
