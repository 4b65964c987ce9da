/* Lists of 0 to 16 arguments, from which the numbered calls are made, and the counting of arguments.
 *
 * For N in 0…16: PARAMS_N are the parameters of a function behind a comma, and ARRAY_N declares the array that the
 * library takes. EACH(X, …) makes X(N, …) for each N. */
#ifndef WEFT_GEX_AM_ARGS_H
#define WEFT_GEX_AM_ARGS_H

#define GEX_WEFT_PARAMS_0
#define GEX_WEFT_PARAMS_1 , gex_AM_Arg_t a1
#define GEX_WEFT_PARAMS_2 GEX_WEFT_PARAMS_1 , gex_AM_Arg_t a2
#define GEX_WEFT_PARAMS_3 GEX_WEFT_PARAMS_2 , gex_AM_Arg_t a3
#define GEX_WEFT_PARAMS_4 GEX_WEFT_PARAMS_3 , gex_AM_Arg_t a4
#define GEX_WEFT_PARAMS_5 GEX_WEFT_PARAMS_4 , gex_AM_Arg_t a5
#define GEX_WEFT_PARAMS_6 GEX_WEFT_PARAMS_5 , gex_AM_Arg_t a6
#define GEX_WEFT_PARAMS_7 GEX_WEFT_PARAMS_6 , gex_AM_Arg_t a7
#define GEX_WEFT_PARAMS_8 GEX_WEFT_PARAMS_7 , gex_AM_Arg_t a8
#define GEX_WEFT_PARAMS_9 GEX_WEFT_PARAMS_8 , gex_AM_Arg_t a9
#define GEX_WEFT_PARAMS_10 GEX_WEFT_PARAMS_9 , gex_AM_Arg_t a10
#define GEX_WEFT_PARAMS_11 GEX_WEFT_PARAMS_10 , gex_AM_Arg_t a11
#define GEX_WEFT_PARAMS_12 GEX_WEFT_PARAMS_11 , gex_AM_Arg_t a12
#define GEX_WEFT_PARAMS_13 GEX_WEFT_PARAMS_12 , gex_AM_Arg_t a13
#define GEX_WEFT_PARAMS_14 GEX_WEFT_PARAMS_13 , gex_AM_Arg_t a14
#define GEX_WEFT_PARAMS_15 GEX_WEFT_PARAMS_14 , gex_AM_Arg_t a15
#define GEX_WEFT_PARAMS_16 GEX_WEFT_PARAMS_15 , gex_AM_Arg_t a16

#define GEX_WEFT_LIST_1 a1
#define GEX_WEFT_LIST_2 GEX_WEFT_LIST_1, a2
#define GEX_WEFT_LIST_3 GEX_WEFT_LIST_2, a3
#define GEX_WEFT_LIST_4 GEX_WEFT_LIST_3, a4
#define GEX_WEFT_LIST_5 GEX_WEFT_LIST_4, a5
#define GEX_WEFT_LIST_6 GEX_WEFT_LIST_5, a6
#define GEX_WEFT_LIST_7 GEX_WEFT_LIST_6, a7
#define GEX_WEFT_LIST_8 GEX_WEFT_LIST_7, a8
#define GEX_WEFT_LIST_9 GEX_WEFT_LIST_8, a9
#define GEX_WEFT_LIST_10 GEX_WEFT_LIST_9, a10
#define GEX_WEFT_LIST_11 GEX_WEFT_LIST_10, a11
#define GEX_WEFT_LIST_12 GEX_WEFT_LIST_11, a12
#define GEX_WEFT_LIST_13 GEX_WEFT_LIST_12, a13
#define GEX_WEFT_LIST_14 GEX_WEFT_LIST_13, a14
#define GEX_WEFT_LIST_15 GEX_WEFT_LIST_14, a15
#define GEX_WEFT_LIST_16 GEX_WEFT_LIST_15, a16

/* clang-format off */
#define GEX_WEFT_ARRAY_0 const gex_AM_Arg_t *const args = NULL
#define GEX_WEFT_ARRAY_1 const gex_AM_Arg_t args[1] = { GEX_WEFT_LIST_1 }
#define GEX_WEFT_ARRAY_2 const gex_AM_Arg_t args[2] = { GEX_WEFT_LIST_2 }
#define GEX_WEFT_ARRAY_3 const gex_AM_Arg_t args[3] = { GEX_WEFT_LIST_3 }
#define GEX_WEFT_ARRAY_4 const gex_AM_Arg_t args[4] = { GEX_WEFT_LIST_4 }
#define GEX_WEFT_ARRAY_5 const gex_AM_Arg_t args[5] = { GEX_WEFT_LIST_5 }
#define GEX_WEFT_ARRAY_6 const gex_AM_Arg_t args[6] = { GEX_WEFT_LIST_6 }
#define GEX_WEFT_ARRAY_7 const gex_AM_Arg_t args[7] = { GEX_WEFT_LIST_7 }
#define GEX_WEFT_ARRAY_8 const gex_AM_Arg_t args[8] = { GEX_WEFT_LIST_8 }
#define GEX_WEFT_ARRAY_9 const gex_AM_Arg_t args[9] = { GEX_WEFT_LIST_9 }
#define GEX_WEFT_ARRAY_10 const gex_AM_Arg_t args[10] = { GEX_WEFT_LIST_10 }
#define GEX_WEFT_ARRAY_11 const gex_AM_Arg_t args[11] = { GEX_WEFT_LIST_11 }
#define GEX_WEFT_ARRAY_12 const gex_AM_Arg_t args[12] = { GEX_WEFT_LIST_12 }
#define GEX_WEFT_ARRAY_13 const gex_AM_Arg_t args[13] = { GEX_WEFT_LIST_13 }
#define GEX_WEFT_ARRAY_14 const gex_AM_Arg_t args[14] = { GEX_WEFT_LIST_14 }
#define GEX_WEFT_ARRAY_15 const gex_AM_Arg_t args[15] = { GEX_WEFT_LIST_15 }
#define GEX_WEFT_ARRAY_16 const gex_AM_Arg_t args[16] = { GEX_WEFT_LIST_16 }
/* clang-format on */

#define GEX_WEFT_EACH(X, name) \
  X(0, name) \
  X(1, name) \
  X(2, name) \
  X(3, name) \
  X(4, name) \
  X(5, name) \
  X(6, name) \
  X(7, name) \
  X(8, name) \
  X(9, name) \
  X(10, name) \
  X(11, name) \
  X(12, name) \
  X(13, name) \
  X(14, name) \
  X(15, name) \
  X(16, name)

/* COUNT_F(…) is the number of arguments behind the first F. The name of the call and that number make the name of the
 * numbered call. A list has one further element, so that no `…` is empty. */
#define GEX_WEFT_NTH_2(p, q, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, n, ...) n
#define GEX_WEFT_NTH_3(p, ...) GEX_WEFT_NTH_2(__VA_ARGS__)
#define GEX_WEFT_NTH_4(p, ...) GEX_WEFT_NTH_3(__VA_ARGS__)
#define GEX_WEFT_NTH_5(p, ...) GEX_WEFT_NTH_4(__VA_ARGS__)
#define GEX_WEFT_NTH_6(p, ...) GEX_WEFT_NTH_5(__VA_ARGS__)
#define GEX_WEFT_NTH_7(p, ...) GEX_WEFT_NTH_6(__VA_ARGS__)
#define GEX_WEFT_NTH_8(p, ...) GEX_WEFT_NTH_7(__VA_ARGS__)
#define GEX_WEFT_COUNT_2(...) GEX_WEFT_NTH_2(__VA_ARGS__, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, ~)
#define GEX_WEFT_COUNT_3(...) GEX_WEFT_NTH_3(__VA_ARGS__, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, ~)
#define GEX_WEFT_COUNT_4(...) GEX_WEFT_NTH_4(__VA_ARGS__, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, ~)
#define GEX_WEFT_COUNT_5(...) GEX_WEFT_NTH_5(__VA_ARGS__, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, ~)
#define GEX_WEFT_COUNT_6(...) GEX_WEFT_NTH_6(__VA_ARGS__, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, ~)
#define GEX_WEFT_COUNT_7(...) GEX_WEFT_NTH_7(__VA_ARGS__, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, ~)
#define GEX_WEFT_COUNT_8(...) GEX_WEFT_NTH_8(__VA_ARGS__, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, ~)

#define GEX_WEFT_JOIN2(name, n) name##n
#define GEX_WEFT_JOIN(name, n) GEX_WEFT_JOIN2(name, n)
#define GEX_WEFT_JOIN_V2(name, n) GEX_WEFT_JOIN2_V2(name, n)
#define GEX_WEFT_JOIN2_V2(name, n) name##n##_v2

#endif
