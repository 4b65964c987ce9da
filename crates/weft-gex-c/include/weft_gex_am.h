/* Active Messages. Included by gasnetex.h.
 *
 * The library takes arguments as an array. The numbered calls, and those that count their arguments, are made here. */
#ifndef WEFT_GEX_AM_H
#define WEFT_GEX_AM_H

#include "weft_gex_am_args.h"

GEX_WEFT_BEGIN_C

/* Limits. */
extern unsigned int gex_AM_MaxArgs(void);
extern size_t gex_AM_MaxRequestMedium(gex_TM_t tm, gex_Rank_t rank, const gex_Event_t *lc, gex_Flags_t flags,
                                      unsigned int nargs);
extern size_t gex_AM_MaxReplyMedium(gex_TM_t tm, gex_Rank_t rank, const gex_Event_t *lc, gex_Flags_t flags,
                                    unsigned int nargs);
extern size_t gex_AM_MaxRequestLong(gex_TM_t tm, gex_Rank_t rank, const gex_Event_t *lc, gex_Flags_t flags,
                                    unsigned int nargs);
extern size_t gex_AM_MaxReplyLong(gex_TM_t tm, gex_Rank_t rank, const gex_Event_t *lc, gex_Flags_t flags,
                                  unsigned int nargs);
extern size_t gex_AM_LUBRequestMedium(void);
extern size_t gex_AM_LUBReplyMedium(void);
extern size_t gex_AM_LUBRequestLong(void);
extern size_t gex_AM_LUBReplyLong(void);
extern size_t gex_Token_MaxReplyMedium(gex_Token_t token, const gex_Event_t *lc, gex_Flags_t flags,
                                       unsigned int nargs);
extern size_t gex_Token_MaxReplyLong(gex_Token_t token, const gex_Event_t *lc, gex_Flags_t flags, unsigned int nargs);
extern gex_TI_t gex_Token_Info(gex_Token_t token, gex_Token_Info_t *info, gex_TI_t mask);

/* Negotiated messages. */
extern gex_AM_SrcDesc_t gex_AM_PrepareRequestMedium(gex_TM_t tm, gex_Rank_t rank, const void *client_buf,
                                                    size_t least, size_t most, gex_Event_t *lc, gex_Flags_t flags,
                                                    unsigned int nargs);
extern gex_AM_SrcDesc_t gex_AM_PrepareReplyMedium(gex_Token_t token, const void *client_buf, size_t least, size_t most,
                                                  gex_Event_t *lc, gex_Flags_t flags, unsigned int nargs);
extern gex_AM_SrcDesc_t gex_AM_PrepareRequestLong(gex_TM_t tm, gex_Rank_t rank, const void *client_buf, size_t least,
                                                  size_t most, void *dest, gex_Event_t *lc, gex_Flags_t flags,
                                                  unsigned int nargs);
extern gex_AM_SrcDesc_t gex_AM_PrepareReplyLong(gex_Token_t token, const void *client_buf, size_t least, size_t most,
                                                void *dest, gex_Event_t *lc, gex_Flags_t flags, unsigned int nargs);
extern void *gex_AM_SrcDescAddr(gex_AM_SrcDesc_t sd);
extern size_t gex_AM_SrcDescSize(gex_AM_SrcDesc_t sd);
extern int gex_AM_CancelRequestMedium(gex_AM_SrcDesc_t sd, gex_Flags_t flags);
extern int gex_AM_CancelReplyMedium(gex_AM_SrcDesc_t sd, gex_Flags_t flags);
extern int gex_AM_CancelRequestLong(gex_AM_SrcDesc_t sd, gex_Flags_t flags);
extern int gex_AM_CancelReplyLong(gex_AM_SrcDesc_t sd, gex_Flags_t flags);

/* The library's calls. */
extern int gex_weft_AM_RequestShort(gex_TM_t tm, gex_Rank_t rank, gex_AM_Index_t handler, gex_Flags_t flags,
                                    unsigned int nargs, const gex_AM_Arg_t *args);
extern int gex_weft_AM_RequestMedium(gex_TM_t tm, gex_Rank_t rank, gex_AM_Index_t handler, const void *src,
                                     size_t bytes, gex_Event_t *lc, gex_Flags_t flags, unsigned int nargs,
                                     const gex_AM_Arg_t *args);
extern int gex_weft_AM_RequestLong(gex_TM_t tm, gex_Rank_t rank, gex_AM_Index_t handler, const void *src, size_t bytes,
                                   void *dest, gex_Event_t *lc, gex_Flags_t flags, unsigned int nargs,
                                   const gex_AM_Arg_t *args);
extern int gex_weft_AM_ReplyShort(gex_Token_t token, gex_AM_Index_t handler, gex_Flags_t flags, unsigned int nargs,
                                  const gex_AM_Arg_t *args);
extern int gex_weft_AM_ReplyMedium(gex_Token_t token, gex_AM_Index_t handler, const void *src, size_t bytes,
                                   gex_Event_t *lc, gex_Flags_t flags, unsigned int nargs, const gex_AM_Arg_t *args);
extern int gex_weft_AM_ReplyLong(gex_Token_t token, gex_AM_Index_t handler, const void *src, size_t bytes, void *dest,
                                 gex_Event_t *lc, gex_Flags_t flags, unsigned int nargs, const gex_AM_Arg_t *args);
extern int gex_weft_AM_CommitRequestMedium(gex_AM_SrcDesc_t sd, gex_AM_Index_t handler, size_t bytes,
                                           gex_Flags_t flags, unsigned int nargs, const gex_AM_Arg_t *args);
extern int gex_weft_AM_CommitReplyMedium(gex_AM_SrcDesc_t sd, gex_AM_Index_t handler, size_t bytes, gex_Flags_t flags,
                                         unsigned int nargs, const gex_AM_Arg_t *args);
extern int gex_weft_AM_CommitRequestLong(gex_AM_SrcDesc_t sd, gex_AM_Index_t handler, size_t bytes, void *dest,
                                         gex_Flags_t flags, unsigned int nargs, const gex_AM_Arg_t *args);
extern int gex_weft_AM_CommitReplyLong(gex_AM_SrcDesc_t sd, gex_AM_Index_t handler, size_t bytes, void *dest,
                                       gex_Flags_t flags, unsigned int nargs, const gex_AM_Arg_t *args);

/* The numbered calls. */
#define GEX_WEFT_REQUEST_SHORT(n, name)                                                                                \
  GEX_WEFT_INLINE int name##n(gex_TM_t tm, gex_Rank_t rank, gex_AM_Index_t handler, gex_Flags_t flags                  \
                                  GEX_WEFT_PARAMS_##n) {                                                               \
    GEX_WEFT_ARRAY_##n;                                                                                                \
    return gex_weft_AM_RequestShort(tm, rank, handler, flags, n, args);                                                \
  }
#define GEX_WEFT_REQUEST_MEDIUM(n, name)                                                                               \
  GEX_WEFT_INLINE int name##n(gex_TM_t tm, gex_Rank_t rank, gex_AM_Index_t handler, const void *src, size_t bytes,     \
                              gex_Event_t *lc, gex_Flags_t flags GEX_WEFT_PARAMS_##n) {                                \
    GEX_WEFT_ARRAY_##n;                                                                                                \
    return gex_weft_AM_RequestMedium(tm, rank, handler, src, bytes, lc, flags, n, args);                               \
  }
#define GEX_WEFT_REQUEST_LONG(n, name)                                                                                 \
  GEX_WEFT_INLINE int name##n(gex_TM_t tm, gex_Rank_t rank, gex_AM_Index_t handler, const void *src, size_t bytes,     \
                              void *dest, gex_Event_t *lc, gex_Flags_t flags GEX_WEFT_PARAMS_##n) {                    \
    GEX_WEFT_ARRAY_##n;                                                                                                \
    return gex_weft_AM_RequestLong(tm, rank, handler, src, bytes, dest, lc, flags, n, args);                           \
  }
#define GEX_WEFT_REPLY_SHORT(n, name)                                                                                  \
  GEX_WEFT_INLINE int name##n(gex_Token_t token, gex_AM_Index_t handler, gex_Flags_t flags GEX_WEFT_PARAMS_##n) {      \
    GEX_WEFT_ARRAY_##n;                                                                                                \
    return gex_weft_AM_ReplyShort(token, handler, flags, n, args);                                                     \
  }
#define GEX_WEFT_REPLY_MEDIUM(n, name)                                                                                 \
  GEX_WEFT_INLINE int name##n(gex_Token_t token, gex_AM_Index_t handler, const void *src, size_t bytes,                \
                              gex_Event_t *lc, gex_Flags_t flags GEX_WEFT_PARAMS_##n) {                                \
    GEX_WEFT_ARRAY_##n;                                                                                                \
    return gex_weft_AM_ReplyMedium(token, handler, src, bytes, lc, flags, n, args);                                    \
  }
#define GEX_WEFT_REPLY_LONG(n, name)                                                                                   \
  GEX_WEFT_INLINE int name##n(gex_Token_t token, gex_AM_Index_t handler, const void *src, size_t bytes, void *dest,    \
                              gex_Event_t *lc, gex_Flags_t flags GEX_WEFT_PARAMS_##n) {                                \
    GEX_WEFT_ARRAY_##n;                                                                                                \
    return gex_weft_AM_ReplyLong(token, handler, src, bytes, dest, lc, flags, n, args);                                \
  }
#define GEX_WEFT_COMMIT_MEDIUM(n, name)                                                                                \
  GEX_WEFT_INLINE int gex_AM_##name##n##_v2(gex_AM_SrcDesc_t sd, gex_AM_Index_t handler, size_t bytes,                 \
                                            gex_Flags_t flags GEX_WEFT_PARAMS_##n) {                                   \
    GEX_WEFT_ARRAY_##n;                                                                                                \
    return gex_weft_AM_##name(sd, handler, bytes, flags, n, args);                                                     \
  }                                                                                                                    \
  GEX_WEFT_INLINE void gex_AM_##name##n(gex_AM_SrcDesc_t sd, gex_AM_Index_t handler,                                   \
                                        size_t bytes GEX_WEFT_PARAMS_##n) {                                            \
    GEX_WEFT_ARRAY_##n;                                                                                                \
    (void)gex_weft_AM_##name(sd, handler, bytes, 0, n, args);                                                          \
  }
#define GEX_WEFT_COMMIT_LONG(n, name)                                                                                  \
  GEX_WEFT_INLINE int gex_AM_##name##n##_v2(gex_AM_SrcDesc_t sd, gex_AM_Index_t handler, size_t bytes, void *dest,     \
                                            gex_Flags_t flags GEX_WEFT_PARAMS_##n) {                                   \
    GEX_WEFT_ARRAY_##n;                                                                                                \
    return gex_weft_AM_##name(sd, handler, bytes, dest, flags, n, args);                                               \
  }                                                                                                                    \
  GEX_WEFT_INLINE void gex_AM_##name##n(gex_AM_SrcDesc_t sd, gex_AM_Index_t handler, size_t bytes,                     \
                                        void *dest GEX_WEFT_PARAMS_##n) {                                              \
    GEX_WEFT_ARRAY_##n;                                                                                                \
    (void)gex_weft_AM_##name(sd, handler, bytes, dest, 0, n, args);                                                    \
  }

GEX_WEFT_EACH(GEX_WEFT_REQUEST_SHORT, gex_AM_RequestShort)
GEX_WEFT_EACH(GEX_WEFT_REQUEST_MEDIUM, gex_AM_RequestMedium)
GEX_WEFT_EACH(GEX_WEFT_REQUEST_LONG, gex_AM_RequestLong)
GEX_WEFT_EACH(GEX_WEFT_REPLY_SHORT, gex_AM_ReplyShort)
GEX_WEFT_EACH(GEX_WEFT_REPLY_MEDIUM, gex_AM_ReplyMedium)
GEX_WEFT_EACH(GEX_WEFT_REPLY_LONG, gex_AM_ReplyLong)
GEX_WEFT_EACH(GEX_WEFT_COMMIT_MEDIUM, CommitRequestMedium)
GEX_WEFT_EACH(GEX_WEFT_COMMIT_MEDIUM, CommitReplyMedium)
GEX_WEFT_EACH(GEX_WEFT_COMMIT_LONG, CommitRequestLong)
GEX_WEFT_EACH(GEX_WEFT_COMMIT_LONG, CommitReplyLong)

GEX_WEFT_END_C

/* The calls that count their arguments. */
#define gex_AM_RequestShort(...) GEX_WEFT_JOIN(gex_AM_RequestShort, GEX_WEFT_COUNT_4(__VA_ARGS__))(__VA_ARGS__)
#define gex_AM_RequestMedium(...) GEX_WEFT_JOIN(gex_AM_RequestMedium, GEX_WEFT_COUNT_7(__VA_ARGS__))(__VA_ARGS__)
#define gex_AM_RequestLong(...) GEX_WEFT_JOIN(gex_AM_RequestLong, GEX_WEFT_COUNT_8(__VA_ARGS__))(__VA_ARGS__)
#define gex_AM_ReplyShort(...) GEX_WEFT_JOIN(gex_AM_ReplyShort, GEX_WEFT_COUNT_3(__VA_ARGS__))(__VA_ARGS__)
#define gex_AM_ReplyMedium(...) GEX_WEFT_JOIN(gex_AM_ReplyMedium, GEX_WEFT_COUNT_6(__VA_ARGS__))(__VA_ARGS__)
#define gex_AM_ReplyLong(...) GEX_WEFT_JOIN(gex_AM_ReplyLong, GEX_WEFT_COUNT_7(__VA_ARGS__))(__VA_ARGS__)
#define gex_AM_CommitRequestMedium(...)                                                                                \
  GEX_WEFT_JOIN(gex_AM_CommitRequestMedium, GEX_WEFT_COUNT_3(__VA_ARGS__))(__VA_ARGS__)
#define gex_AM_CommitReplyMedium(...)                                                                                  \
  GEX_WEFT_JOIN(gex_AM_CommitReplyMedium, GEX_WEFT_COUNT_3(__VA_ARGS__))(__VA_ARGS__)
#define gex_AM_CommitRequestLong(...)                                                                                  \
  GEX_WEFT_JOIN(gex_AM_CommitRequestLong, GEX_WEFT_COUNT_4(__VA_ARGS__))(__VA_ARGS__)
#define gex_AM_CommitReplyLong(...) GEX_WEFT_JOIN(gex_AM_CommitReplyLong, GEX_WEFT_COUNT_4(__VA_ARGS__))(__VA_ARGS__)
#define gex_AM_CommitRequestMedium_v2(...)                                                                             \
  GEX_WEFT_JOIN_V2(gex_AM_CommitRequestMedium, GEX_WEFT_COUNT_4(__VA_ARGS__))(__VA_ARGS__)
#define gex_AM_CommitReplyMedium_v2(...)                                                                               \
  GEX_WEFT_JOIN_V2(gex_AM_CommitReplyMedium, GEX_WEFT_COUNT_4(__VA_ARGS__))(__VA_ARGS__)
#define gex_AM_CommitRequestLong_v2(...)                                                                               \
  GEX_WEFT_JOIN_V2(gex_AM_CommitRequestLong, GEX_WEFT_COUNT_5(__VA_ARGS__))(__VA_ARGS__)
#define gex_AM_CommitReplyLong_v2(...)                                                                                 \
  GEX_WEFT_JOIN_V2(gex_AM_CommitReplyLong, GEX_WEFT_COUNT_5(__VA_ARGS__))(__VA_ARGS__)

#endif
