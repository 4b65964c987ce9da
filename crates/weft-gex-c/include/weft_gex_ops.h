/* Data types and operations of atomics and reductions. Included by gasnet_fwd.h. */
#ifndef WEFT_GEX_OPS_H
#define WEFT_GEX_OPS_H

#define GEX_DT_I32 ((gex_DT_t)1 << 0)
#define GEX_DT_U32 ((gex_DT_t)1 << 1)
#define GEX_DT_I64 ((gex_DT_t)1 << 2)
#define GEX_DT_U64 ((gex_DT_t)1 << 3)
#define GEX_DT_FLT ((gex_DT_t)1 << 4)
#define GEX_DT_DBL ((gex_DT_t)1 << 5)
#define GEX_DT_USER ((gex_DT_t)1 << 6)

#define GEX_OP_AND ((gex_OP_t)1 << 0)
#define GEX_OP_OR ((gex_OP_t)1 << 1)
#define GEX_OP_XOR ((gex_OP_t)1 << 2)
#define GEX_OP_ADD ((gex_OP_t)1 << 3)
#define GEX_OP_SUB ((gex_OP_t)1 << 4)
#define GEX_OP_MULT ((gex_OP_t)1 << 5)
#define GEX_OP_MIN ((gex_OP_t)1 << 6)
#define GEX_OP_MAX ((gex_OP_t)1 << 7)
#define GEX_OP_INC ((gex_OP_t)1 << 8)
#define GEX_OP_DEC ((gex_OP_t)1 << 9)
#define GEX_OP_SET ((gex_OP_t)1 << 10)
#define GEX_OP_CAS ((gex_OP_t)1 << 11)

/* The fetching form of an operation is 15 bits further. That of SET is SWAP. */
#define GEX_OP_TO_FETCHING(op) ((gex_OP_t)(op) << 15)
#define GEX_OP_TO_NONFETCHING(op) ((gex_OP_t)(op) >> 15)
#define GEX_OP_FAND GEX_OP_TO_FETCHING(GEX_OP_AND)
#define GEX_OP_FOR GEX_OP_TO_FETCHING(GEX_OP_OR)
#define GEX_OP_FXOR GEX_OP_TO_FETCHING(GEX_OP_XOR)
#define GEX_OP_FADD GEX_OP_TO_FETCHING(GEX_OP_ADD)
#define GEX_OP_FSUB GEX_OP_TO_FETCHING(GEX_OP_SUB)
#define GEX_OP_FMULT GEX_OP_TO_FETCHING(GEX_OP_MULT)
#define GEX_OP_FMIN GEX_OP_TO_FETCHING(GEX_OP_MIN)
#define GEX_OP_FMAX GEX_OP_TO_FETCHING(GEX_OP_MAX)
#define GEX_OP_FINC GEX_OP_TO_FETCHING(GEX_OP_INC)
#define GEX_OP_FDEC GEX_OP_TO_FETCHING(GEX_OP_DEC)
#define GEX_OP_SWAP GEX_OP_TO_FETCHING(GEX_OP_SET)
#define GEX_OP_FCAS GEX_OP_TO_FETCHING(GEX_OP_CAS)
#define GEX_OP_CSWAP GEX_OP_FCAS
#define GEX_OP_GET ((gex_OP_t)1 << 27)
#define GEX_OP_USER ((gex_OP_t)1 << 30)
#define GEX_OP_USER_NC ((gex_OP_t)1 << 31)

#endif
