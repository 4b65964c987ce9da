/* Words that the other headers are written with. */
#ifndef WEFT_GEX_BASE_H
#define WEFT_GEX_BASE_H

#ifdef __cplusplus
#define GEX_WEFT_BEGIN_C extern "C" {
#define GEX_WEFT_END_C }
#else
#define GEX_WEFT_BEGIN_C
#define GEX_WEFT_END_C
#endif

/* Not `inline`, which C89 lacks. */
#define GEX_WEFT_INLINE static __inline__ __attribute__((__unused__))
#define GEX_WEFT_NORETURN __attribute__((__noreturn__))
#define GEX_WEFT_PRINTF(format, first) __attribute__((__format__(__printf__, format, first)))

/* Function pointers without prototype, as the interface has them. */
#ifdef __clang__
#define GEX_WEFT_OLD_FUNCTIONS_BEGIN                                                                                   \
  _Pragma("clang diagnostic push") _Pragma("clang diagnostic ignored \"-Wstrict-prototypes\"")
#define GEX_WEFT_OLD_FUNCTIONS_END _Pragma("clang diagnostic pop")
#else
#define GEX_WEFT_OLD_FUNCTIONS_BEGIN
#define GEX_WEFT_OLD_FUNCTIONS_END
#endif

#endif
