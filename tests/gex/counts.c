/* Every call of an Active Message with 0 to 16 arguments, numbered and counted, passes what it is given. C99 and C++11.
 *
 * The program has the library's functions itself: they compare what arrives. */
#include "gasnet.h"

static int failures;
static unsigned expected;
static int calls;

static const char source[] = "source";
static char target[1];
#define TM ((gex_TM_t)(uintptr_t)64)
#define TOKEN ((gex_Token_t)(uintptr_t)128)
#define SD ((gex_AM_SrcDesc_t)(uintptr_t)192)

static int arrived(int same, gex_AM_Index_t handler, gex_Flags_t flags, gex_Flags_t given, unsigned nargs,
                   const gex_AM_Arg_t *args) {
  unsigned i;
  calls++;
  if (!same || handler != 200 || flags != given || nargs != expected) {
    printf("call %d: %u arguments instead of %u, or other parameters\n", calls, nargs, expected);
    failures++;
  }
  for (i = 0; i < nargs; i++) {
    if (args[i] != -(gex_AM_Arg_t)(i + 1)) {
      printf("call %d: argument %u is %d\n", calls, i, (int)args[i]);
      failures++;
    }
  }
  return 7;
}

static gex_Flags_t flags_given;
/* An asynchronous request has no local completion. */
#define LC_OK (lc == GEX_EVENT_NOW || lc == GEX_EVENT_DEFER)
#define DATA_OK (src == source && bytes == 6 && LC_OK)

GEX_WEFT_BEGIN_C
const char GEX_WEFT_LINK[] = "counts";
gex_TM_t gex_weft_tm0(void) { return TM; }
int gex_weft_AM_RequestShort(gex_TM_t tm, gex_Rank_t rank, gex_AM_Index_t handler, gex_Flags_t flags, unsigned nargs,
                             const gex_AM_Arg_t *args) {
  return arrived(tm == TM && rank == 5, handler, flags, flags_given, nargs, args);
}
int gex_weft_AM_RequestMedium(gex_TM_t tm, gex_Rank_t rank, gex_AM_Index_t handler, const void *src, size_t bytes,
                              gex_Event_t *lc, gex_Flags_t flags, unsigned nargs, const gex_AM_Arg_t *args) {
  return arrived(tm == TM && rank == 5 && DATA_OK, handler, flags, flags_given, nargs, args);
}
int gex_weft_AM_RequestLong(gex_TM_t tm, gex_Rank_t rank, gex_AM_Index_t handler, const void *src, size_t bytes,
                            void *dest, gex_Event_t *lc, gex_Flags_t flags, unsigned nargs, const gex_AM_Arg_t *args) {
  return arrived(tm == TM && rank == 5 && DATA_OK && dest == target, handler, flags, flags_given, nargs, args);
}
int gex_weft_AM_ReplyShort(gex_Token_t token, gex_AM_Index_t handler, gex_Flags_t flags, unsigned nargs,
                           const gex_AM_Arg_t *args) {
  return arrived(token == TOKEN, handler, flags, flags_given, nargs, args);
}
int gex_weft_AM_ReplyMedium(gex_Token_t token, gex_AM_Index_t handler, const void *src, size_t bytes, gex_Event_t *lc,
                            gex_Flags_t flags, unsigned nargs, const gex_AM_Arg_t *args) {
  return arrived(token == TOKEN && DATA_OK, handler, flags, flags_given, nargs, args);
}
int gex_weft_AM_ReplyLong(gex_Token_t token, gex_AM_Index_t handler, const void *src, size_t bytes, void *dest,
                          gex_Event_t *lc, gex_Flags_t flags, unsigned nargs, const gex_AM_Arg_t *args) {
  return arrived(token == TOKEN && DATA_OK && dest == target, handler, flags, flags_given, nargs, args);
}
#define COMMITS(name)                                                                                                  \
  int gex_weft_AM_Commit##name##Medium(gex_AM_SrcDesc_t sd, gex_AM_Index_t handler, size_t bytes, gex_Flags_t flags,   \
                                       unsigned nargs, const gex_AM_Arg_t *args) {                                     \
    return arrived(sd == SD && bytes == 6, handler, flags, flags_given, nargs, args);                                  \
  }                                                                                                                    \
  int gex_weft_AM_Commit##name##Long(gex_AM_SrcDesc_t sd, gex_AM_Index_t handler, size_t bytes, void *dest,            \
                                     gex_Flags_t flags, unsigned nargs, const gex_AM_Arg_t *args) {                    \
    return arrived(sd == SD && bytes == 6 && dest == target, handler, flags, flags_given, nargs, args);                \
  }
COMMITS(Request)
COMMITS(Reply)
GEX_WEFT_END_C

#define TAIL_0
#define TAIL_1 , -1
#define TAIL_2 TAIL_1, -2
#define TAIL_3 TAIL_2, -3
#define TAIL_4 TAIL_3, -4
#define TAIL_5 TAIL_4, -5
#define TAIL_6 TAIL_5, -6
#define TAIL_7 TAIL_6, -7
#define TAIL_8 TAIL_7, -8
#define TAIL_9 TAIL_8, -9
#define TAIL_10 TAIL_9, -10
#define TAIL_11 TAIL_10, -11
#define TAIL_12 TAIL_11, -12
#define TAIL_13 TAIL_12, -13
#define TAIL_14 TAIL_13, -14
#define TAIL_15 TAIL_14, -15
#define TAIL_16 TAIL_15, -16

#define RETURNS(call)                                                                                                  \
  if ((call) != 7) {                                                                                                   \
    printf("%s does not return the library's answer\n", #call);                                                        \
    failures++;                                                                                                        \
  }

/* The numbered and the counted form of one call. */
#define BOTH(name, n, ...)                                                                                             \
  RETURNS(name##n(__VA_ARGS__ TAIL_##n))                                                                               \
  RETURNS(name(__VA_ARGS__ TAIL_##n))
#define BOTH_COMMITS(name, n, ...)                                                                                     \
  name##n(__VA_ARGS__ TAIL_##n);                                                                                       \
  name(__VA_ARGS__ TAIL_##n);
#define BOTH_V2(name, n, ...)                                                                                          \
  RETURNS(name##n##_v2(__VA_ARGS__ TAIL_##n))                                                                          \
  RETURNS(name##_v2(__VA_ARGS__ TAIL_##n))

#define TRY(n, unused)                                                                                                 \
  expected = n;                                                                                                        \
  flags_given = 3;                                                                                                     \
  BOTH(gex_AM_RequestShort, n, TM, 5, 200, 3)                                                                          \
  BOTH(gex_AM_RequestMedium, n, TM, 5, 200, source, 6, GEX_EVENT_NOW, 3)                                               \
  BOTH(gex_AM_RequestLong, n, TM, 5, 200, source, 6, target, GEX_EVENT_NOW, 3)                                         \
  BOTH(gex_AM_ReplyShort, n, TOKEN, 200, 3)                                                                            \
  BOTH(gex_AM_ReplyMedium, n, TOKEN, 200, source, 6, GEX_EVENT_NOW, 3)                                                 \
  BOTH(gex_AM_ReplyLong, n, TOKEN, 200, source, 6, target, GEX_EVENT_NOW, 3)                                           \
  BOTH_V2(gex_AM_CommitRequestMedium, n, SD, 200, 6, 3)                                                                \
  BOTH_V2(gex_AM_CommitReplyMedium, n, SD, 200, 6, 3)                                                                  \
  BOTH_V2(gex_AM_CommitRequestLong, n, SD, 200, 6, target, 3)                                                          \
  BOTH_V2(gex_AM_CommitReplyLong, n, SD, 200, 6, target, 3)                                                            \
  flags_given = 0;                                                                                                     \
  BOTH_COMMITS(gex_AM_CommitRequestMedium, n, SD, 200, 6)                                                              \
  BOTH_COMMITS(gex_AM_CommitReplyMedium, n, SD, 200, 6)                                                                \
  BOTH_COMMITS(gex_AM_CommitRequestLong, n, SD, 200, 6, target)                                                        \
  BOTH_COMMITS(gex_AM_CommitReplyLong, n, SD, 200, 6, target)                                                          \
  BOTH(gasnet_AMRequestShort, n, 5, 200)                                                                               \
  BOTH(gasnet_AMRequestMedium, n, 5, 200, source, 6)                                                                   \
  BOTH(gasnet_AMRequestLong, n, 5, 200, source, 6, target)                                                             \
  BOTH(gasnet_AMRequestLongAsync, n, 5, 200, source, 6, target)                                                        \
  BOTH(gasnet_AMReplyShort, n, TOKEN, 200)                                                                             \
  BOTH(gasnet_AMReplyMedium, n, TOKEN, 200, source, 6)                                                                 \
  BOTH(gasnet_AMReplyLong, n, TOKEN, 200, source, 6, target)

int main(void) {
  GEX_WEFT_EACH(TRY, ~)
  if (calls != 17 * 21 * 2) {
    printf("%d calls instead of %d\n", calls, 17 * 21 * 2);
    failures++;
  }
  return failures != 0;
}
