/* Tools: facts of the platform, attributes, and small macros. Included by gasnet_tools.h. */
#ifndef WEFT_GEX_TOOLS_WORDS_H
#define WEFT_GEX_TOOLS_WORDS_H

#define GASNETT_RELEASE_VERSION_MAJOR GASNET_RELEASE_VERSION_MAJOR
#define GASNETT_RELEASE_VERSION_MINOR GASNET_RELEASE_VERSION_MINOR
#define GASNETT_RELEASE_VERSION_PATCH GASNET_RELEASE_VERSION_PATCH
#define GASNETT_PAGESIZE GASNET_PAGESIZE
#define GASNETT_PAGESHIFT GASNET_PAGESHIFT
#define GASNETT_CACHE_LINE_BYTES 64
#if defined(GASNET_PAR)
#define GASNETT_THREAD_SAFE 1
#define GASNETT_MAX_THREADS GASNETI_MAX_THREADS
#define GEX_WEFT_TOOLS_MODE_STR "PAR"
#elif defined(GASNET_SEQ)
#define GASNETT_MAX_THREADS 1
#define GEX_WEFT_TOOLS_MODE_STR "SEQ"
#elif defined(GASNETT_THREAD_SAFE)
#define GEX_WEFT_TOOLS_MODE_STR "PAR"
#else
#define GEX_WEFT_TOOLS_MODE_STR "SEQ"
#endif
#define GASNETT_CONFIG_STRING                                                                                          \
  "RELEASE=2025.8.0,SPEC=1.20,THREADMODEL=" GEX_WEFT_TOOLS_MODE_STR ",PTR=64bit,CORE=WEFT-0.1"

/* The platform. Undefined names count as 0. */
#define PLATFORM_ARCH_64 1
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define PLATFORM_ARCH_BIG_ENDIAN 1
#else
#define PLATFORM_ARCH_LITTLE_ENDIAN 1
#endif
#define PLATFORM_OS_LINUX 1
#define PLATFORM_OS_FAMILYNAME LINUX
#if defined(__x86_64__)
#define PLATFORM_ARCH_X86_64 1
#define PLATFORM_ARCH_FAMILYNAME X86_64
#define GASNETT_SYSTEM_TUPLE "x86_64-linux-gnu"
#elif defined(__aarch64__)
#define PLATFORM_ARCH_AARCH64 1
#define PLATFORM_ARCH_FAMILYNAME AARCH64
#define GASNETT_SYSTEM_TUPLE "aarch64-linux-gnu"
#else
#define PLATFORM_ARCH_FAMILYNAME UNKNOWN
#define GASNETT_SYSTEM_TUPLE "unknown-linux-gnu"
#endif
#if defined(__clang__)
#define PLATFORM_COMPILER_CLANG 1
#define PLATFORM_COMPILER_FAMILYNAME CLANG
#define PLATFORM_COMPILER_VERSION_STR __clang_version__
#define PLATFORM_COMPILER_IDSTR "|COMPILER_FAMILY:CLANG|COMPILER_VERSION:" __clang_version__ "|"
#else
#define PLATFORM_COMPILER_GNU 1
#define PLATFORM_COMPILER_FAMILYNAME GNU
#define PLATFORM_COMPILER_VERSION_STR __VERSION__
#define PLATFORM_COMPILER_IDSTR "|COMPILER_FAMILY:GNU|COMPILER_VERSION:" __VERSION__ "|"
#endif
#define PLATFORM_COMPILER_VERSION_INT(major, minor, patch) ((((major) << 8) | (minor)) << 16 | (patch))
#ifdef __clang__
#define PLATFORM_COMPILER_VERSION                                                                                      \
  PLATFORM_COMPILER_VERSION_INT(__clang_major__, __clang_minor__, __clang_patchlevel__)
#else
#define PLATFORM_COMPILER_VERSION PLATFORM_COMPILER_VERSION_INT(__GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__)
#endif
#define PLATFORM_COMPILER_VERSION_GE(a, b, c) (PLATFORM_COMPILER_VERSION >= PLATFORM_COMPILER_VERSION_INT(a, b, c))
#define PLATFORM_COMPILER_VERSION_GT(a, b, c) (PLATFORM_COMPILER_VERSION > PLATFORM_COMPILER_VERSION_INT(a, b, c))
#define PLATFORM_COMPILER_VERSION_LE(a, b, c) (PLATFORM_COMPILER_VERSION <= PLATFORM_COMPILER_VERSION_INT(a, b, c))
#define PLATFORM_COMPILER_VERSION_LT(a, b, c) (PLATFORM_COMPILER_VERSION < PLATFORM_COMPILER_VERSION_INT(a, b, c))
#ifdef __cplusplus
#define PLATFORM_COMPILER_CXX 1
#else
#define PLATFORM_COMPILER_C 1
#endif
#ifndef HAVE_PTHREAD_H
#define HAVE_PTHREAD_H 1
#endif
#ifndef HAVE_MMAP
#define HAVE_MMAP 1
#endif
#ifndef SIZEOF_INT
#define SIZEOF_INT 4
#endif
#ifndef SIZEOF_LONG
#define SIZEOF_LONG 8
#endif
#ifndef SIZEOF_VOID_P
#define SIZEOF_VOID_P 8
#endif
#ifndef PRIuSZ
#define PRIuSZ "zu"
#endif

/* Attributes. */
#define GASNETT_RESTRICT __restrict__
#define GASNETT_INLINE(function) static __inline__
#define GASNETT_NEVER_INLINE(function, declaration) __attribute__((__noinline__)) declaration
#define GASNETT_NORETURN __attribute__((__noreturn__))
#define GASNETT_NORETURNP(function)
#define GASNETT_MALLOC __attribute__((__malloc__))
#define GASNETT_MALLOCP(function)
#define GASNETT_PURE __attribute__((__pure__))
#define GASNETT_PUREP(function)
#define GASNETT_CONST __attribute__((__const__))
#define GASNETT_CONSTP(function)
#define GASNETT_WARN_UNUSED_RESULT __attribute__((__warn_unused_result__))
#define GASNETT_HOT __attribute__((__hot__))
#define GASNETT_COLD __attribute__((__cold__))
#define GASNETT_USED __attribute__((__used__))
#define GASNETT_UNUSED __attribute__((__unused__))
#define GASNETT_DEPRECATED __attribute__((__deprecated__))
#define GASNETT_ALWAYS_INLINE(function) static __inline__ __attribute__((__always_inline__))
#define GASNETT_FORMAT_PRINTF(function, format, first, declaration)                                                    \
  __attribute__((__format__(__printf__, format, first))) declaration
#define GASNETT_FORMAT_PRINTF_FUNCPTR(pointer, format, first, declaration)                                             \
  declaration __attribute__((__format__(__printf__, format, first)))
#define GASNETT_PREDICT_TRUE(condition) __builtin_expect(!!(condition), 1)
#define GASNETT_PREDICT_FALSE(condition) __builtin_expect(!!(condition), 0)
#define GASNETT_PREFETCH_READ_HINT(address) __builtin_prefetch((address), 0)
#define GASNETT_PREFETCH_WRITE_HINT(address) __builtin_prefetch((address), 1)
#define GASNETT_BEGIN_EXTERNC GEX_WEFT_BEGIN_C
#define GASNETT_END_EXTERNC GEX_WEFT_END_C
#ifdef __cplusplus
#define GASNETT_EXTERNC extern "C"
#else
#define GASNETT_EXTERNC extern
#endif
#define GASNETT_CURRENT_FUNCTION __func__
#ifndef if_pf
#define if_pf(condition) if (GASNETT_PREDICT_FALSE(condition))
#define if_pt(condition) if (GASNETT_PREDICT_TRUE(condition))
#endif

/* A string that programs which search executables find. */
#define GASNETT_IDENT(name, string) static const char name[] __attribute__((__used__)) = string

#ifndef _STRINGIFY
#define _STRINGIFY_HELPER(x) #x
#define _STRINGIFY(x) _STRINGIFY_HELPER(x)
#endif
#ifndef _CONCAT
#define _CONCAT_HELPER(a, b) a##b
#define _CONCAT(a, b) _CONCAT_HELPER(a, b)
#endif

#endif
