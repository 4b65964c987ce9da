/* Structures of the GASNet-EX interface. Included by gasnetex.h. */
#ifndef WEFT_GEX_TYPES_H
#define WEFT_GEX_TYPES_H

GEX_WEFT_OLD_FUNCTIONS_BEGIN
typedef void (*gex_AM_Fn_t)();
GEX_WEFT_OLD_FUNCTIONS_END

/* Clients initialise entries by position: the order is binding. */
typedef struct {
  gex_AM_Index_t gex_index;
  gex_AM_Fn_t gex_fnptr;
  gex_Flags_t gex_flags;
  unsigned int gex_nargs;
  const void *gex_cdata;
  const char *gex_name;
} gex_AM_Entry_t;

/* gex_nargs of handlers whose number of arguments is not known: those of gasnet_attach. */
#define GEX_WEFT_NARGS_UNKNOWN (~0u)

typedef struct {
  gex_Rank_t gex_srcrank;
  gex_EP_t gex_ep;
  const gex_AM_Entry_t *gex_entry;
  int gex_is_req;
  int gex_is_long;
} gex_Token_Info_t;

typedef const struct {
  gex_Rank_t gex_jobrank;
} gex_RankInfo_t;

typedef struct {
  const char *gex_device_list;
  unsigned int gex_thread_roles;
  void *(*gex_progress_fn)(void *);
  void *gex_progress_arg;
} gex_ProgressThreadInfo_t;

typedef void (*gex_Coll_ReduceFn_t)(const void *arg1, void *arg2_and_out, size_t count, const void *cdata);

/* A lock that handlers may take. In SEQ no two holders can meet, unless the library has a thread. */
/* clang-format off */
#if GASNET_HIDDEN_AM_CONCURRENCY_LEVEL
typedef struct {
  pthread_mutex_t gex_weft_mutex;
} gex_HSL_t;
#define GEX_HSL_INITIALIZER { PTHREAD_MUTEX_INITIALIZER }
#else
typedef struct {
  char gex_weft_unused;
} gex_HSL_t;
#define GEX_HSL_INITIALIZER { 0 }
#endif
/* clang-format on */

typedef uint32_t gasnet_node_t;
typedef struct {
  void *addr;
  uintptr_t size;
} gasnet_seginfo_t;
typedef struct {
  gasnet_node_t host;
  gasnet_node_t supernode;
  intptr_t offset;
} gasnet_nodeinfo_t;

#endif
