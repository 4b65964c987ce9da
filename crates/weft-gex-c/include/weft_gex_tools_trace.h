/* Tools: traces and statistics, which weft does not write. Included by gasnet_tools.h. */
#ifndef WEFT_GEX_TOOLS_TRACE_H
#define WEFT_GEX_TOOLS_TRACE_H

GEX_WEFT_BEGIN_C
/* Checks the arguments' types. A client takes its address. */
GEX_WEFT_INLINE GEX_WEFT_PRINTF(1, 2) void _gasnett_trace_printf_noop(const char *format, ...) { (void)format; }
GEX_WEFT_INLINE void gex_weft_trace_line(const char **file, unsigned int *line) {
  *file = NULL;
  *line = 0;
}
GEX_WEFT_END_C

#define GASNETT_TRACE_ENABLED 0
#define GEX_WEFT_NO_TRACE(...)                                                                                         \
  do {                                                                                                                 \
    if (0) _gasnett_trace_printf_noop(__VA_ARGS__);                                                                    \
  } while (0)
#define GASNETT_TRACE_PRINTF(...) GEX_WEFT_NO_TRACE(__VA_ARGS__)
#define GASNETT_TRACE_PRINTF_FORCE(...) GEX_WEFT_NO_TRACE(__VA_ARGS__)
#define GASNETT_TRACE_SETSOURCELINE(file, line) ((void)(file), (void)(line))
#define GASNETT_TRACE_GETSOURCELINE(file, line) gex_weft_trace_line((file), (line))
#define GASNETT_TRACE_FREEZESOURCELINE() ((void)0)
#define GASNETT_TRACE_UNFREEZESOURCELINE() ((void)0)
#define GASNETT_TRACE_GETMASK() ""
#define GASNETT_TRACE_SETMASK(mask) ((void)(mask))
#define GASNETT_TRACE_GET_TRACELOCAL() (0)
#define GASNETT_TRACE_SET_TRACELOCAL(value) ((void)(value))
#define GASNETT_STATS_PRINTF(...) GEX_WEFT_NO_TRACE(__VA_ARGS__)
#define GASNETT_STATS_PRINTF_FORCE(...) GEX_WEFT_NO_TRACE(__VA_ARGS__)
#define GASNETT_STATS_GETMASK() ""
#define GASNETT_STATS_SETMASK(mask) ((void)(mask))
#define GASNETT_STATS_INIT(callback) ((void)(callback))
#define GASNETT_STATS_DUMP(reset) ((void)(reset))

#endif
