/* Tools: functions of the library, and clocks. Included by gasnet_tools.h. */
#ifndef WEFT_GEX_TOOLS_CALLS_H
#define WEFT_GEX_TOOLS_CALLS_H

GEX_WEFT_BEGIN_C

/* The environment. The displays print a line when verboseenv() holds. */
extern char *gasnett_getenv(const char *name);
extern const char *gasnett_getenv_withdefault(const char *name, const char *value);
extern int gasnett_getenv_yesno_withdefault(const char *name, int value);
extern int64_t gasnett_getenv_int_withdefault(const char *name, int64_t value, uint64_t memory_unit);
extern double gasnett_getenv_dbl_withdefault(const char *name, double value);
extern void gasnett_setenv(const char *name, const char *value);
extern void gasnett_unsetenv(const char *name);
extern int gasnett_verboseenv(void);
extern void gasnett_envstr_display(const char *name, const char *value, int is_default);
extern void gasnett_envint_display(const char *name, int64_t value, int is_default, int is_memory);
extern void gasnett_envdbl_display(const char *name, double value, int is_default);

/* Numbers as text. With a memory unit other than 0, numbers may end in KB, MB, GB or TB. */
extern char *gasnett_format_number(int64_t value, char *buffer, size_t bytes, int is_memory);
extern int64_t gasnett_parse_int(const char *text, uint64_t memory_unit);
extern double gasnett_parse_dbl(const char *text);

/* The machine and the process. */
extern int gasnett_cpu_count(void);
extern const char *gasnett_gethostname(void);
extern uint64_t gasnett_getPhysMemSz(int failure_is_fatal);
#define GASNETT_SET_AFFINITY_SUPPORT 1
extern int gasnett_set_affinity(int rank);
extern const char *gasnett_exe_name(void);
extern void gasnett_flush_streams(void);
extern void gasnett_maximize_rlimits(void);
extern int gasnett_maximize_rlimit(int resource, const char *name);
extern GEX_WEFT_NORETURN void gasnett_killmyprocess(int code);
extern void *gasnett_mmap(uintptr_t bytes);
extern uint64_t gasnett_release_version(void);
extern const char *gasnett_release_version_str(void);
extern const char *gasnett_performance_warning_str(void);
extern uint64_t gasnett_checksum(const void *data, size_t bytes);
typedef void (*gasnett_sighandlerfn_t)(int);
extern gasnett_sighandlerfn_t gasnett_reghandler(int signal, gasnett_sighandlerfn_t handler);

/* Masks and lists as text. The first three return the bytes that the text needs, and write it if `buffer` is not NULL. */
extern size_t gasnett_format_dt(char *buffer, gex_DT_t dt);
extern size_t gasnett_format_op(char *buffer, gex_OP_t op);
extern size_t gasnett_format_ti(char *buffer, gex_TI_t ti);
extern size_t gasnett_format_memveclist_bufsz(size_t count);
extern char *gasnett_format_memveclist(char *buffer, size_t count, const gex_Memvec_t *list);
extern size_t gasnett_format_addrlist_bufsz(size_t count);
extern char *gasnett_format_addrlist(char *buffer, size_t count, void *const *list, size_t bytes);
extern size_t gasnett_format_putsgets_bufsz(size_t levels);
extern char *gasnett_format_putsgets(char *buffer, void *total, gex_TM_t tm, gex_Rank_t rank, void *dest,
                                     const ptrdiff_t *dest_strides, void *src, const ptrdiff_t *src_strides,
                                     size_t element_bytes, const size_t *counts, size_t levels);

/* Fatal errors. */
extern GEX_WEFT_NORETURN void gasnett_weft_fatal(const char *file, unsigned int line, const char *text);
GEX_WEFT_INLINE GEX_WEFT_NORETURN GEX_WEFT_PRINTF(3, 4) void gasnett_weft_fatalerror(const char *file,
                                                                                     unsigned int line,
                                                                                     const char *format, ...) {
  char text[1024];
  va_list list;
  va_start(list, format);
  (void)vsnprintf(text, sizeof(text), format, list);
  va_end(list);
  gasnett_weft_fatal(file, line, text);
}
#define gasnett_fatalerror(...) gasnett_weft_fatalerror(__FILE__, (unsigned int)__LINE__, __VA_ARGS__)
#define gasnett_fatalerror_nopos(...) gasnett_weft_fatalerror(NULL, 0u, __VA_ARGS__)

/* Backtraces. The library has none of its own: it calls the client's function, if there is one. */
typedef struct {
  const char *name;
  int (*fnp)(int fd);
  int required;
} gasnett_backtrace_type_t;
extern gasnett_backtrace_type_t gasnett_backtrace_user __attribute__((__weak__));
extern void gasnett_weft_backtrace_init(const char *exe, const gasnett_backtrace_type_t *user);
extern int gasnett_print_backtrace(int fd);
extern int gasnett_print_backtrace_ifenabled(int fd);
#define gasnett_backtrace_init(exe) gasnett_weft_backtrace_init((exe), &gasnett_backtrace_user)

/* Clocks. A tick is a nanosecond of the monotonic clock. */
typedef uint64_t gasnett_tick_t;
#define GASNETT_TICK_MIN ((gasnett_tick_t)0)
#define GASNETT_TICK_MAX (~(gasnett_tick_t)0)
extern gasnett_tick_t gasnett_ticks_now(void);
extern double gasnett_tick_granularityus(void);
extern double gasnett_tick_overheadus(void);
extern uint64_t gasnett_gettimeofday_us(void);
extern int gasnett_nsleep(uint64_t nanoseconds);
#define gasnett_ticks_to_ns(ticks) ((uint64_t)(ticks))
#define gasnett_ticks_to_us(ticks) ((uint64_t)(ticks) / 1000)

/* Zero bytes of a value, and of memory. */
GEX_WEFT_INLINE size_t gasnett_count0s(const void *data, size_t bytes) {
  const unsigned char *byte = (const unsigned char *)data;
  size_t zeros = 0, i;
  for (i = 0; i < bytes; i++) zeros += !byte[i];
  return zeros;
}
GEX_WEFT_INLINE size_t gasnett_count0s_copy(void *GASNETT_RESTRICT dest, const void *GASNETT_RESTRICT src,
                                            size_t bytes) {
  memcpy(dest, src, bytes);
  return gasnett_count0s(dest, bytes);
}
GEX_WEFT_INLINE unsigned int gasnett_count0s_uint32_t(uint32_t value) {
  return (unsigned int)gasnett_count0s(&value, sizeof(value));
}
GEX_WEFT_INLINE unsigned int gasnett_count0s_uint64_t(uint64_t value) {
  return (unsigned int)gasnett_count0s(&value, sizeof(value));
}
GEX_WEFT_INLINE unsigned int gasnett_count0s_uintptr_t(uintptr_t value) {
  return (unsigned int)gasnett_count0s(&value, sizeof(value));
}

GEX_WEFT_INLINE int gasnett_sched_yield(void) { return sched_yield(); }
#if defined(__x86_64__)
#define gasnett_spinloop_hint() __builtin_ia32_pause()
#else
#define gasnett_spinloop_hint() __atomic_signal_fence(__ATOMIC_SEQ_CST)
#endif

GEX_WEFT_END_C

#endif
