/* GASNet-1: types, start and locks. Included by gasnet.h. */
#ifndef WEFT_GEX_ONE_TYPES_H
#define WEFT_GEX_ONE_TYPES_H

typedef gex_AM_Index_t gasnet_handler_t;
typedef gex_AM_Arg_t gasnet_handlerarg_t;
typedef gex_Token_t gasnet_token_t;
typedef gex_Event_t gasnet_handle_t;
typedef gex_RMA_Value_t gasnet_register_value_t;
typedef gex_HSL_t gasnet_hsl_t;

typedef struct {
  gasnet_handler_t index;
  gex_AM_Fn_t fnptr;
} gasnet_handlerentry_t;

/* The layout of gex_Memvec_t. */
typedef struct {
  void *addr;
  size_t len;
} gasnet_memvec_t;

/* A get of a value ends before its call returns: the handle is the value. */
typedef struct {
  gasnet_register_value_t gex_weft_value;
} gasnet_valget_handle_t;

/* The old name of the major version of GASNet-1. */
#define GASNET_VERSION GASNET_SPEC_VERSION_MAJOR
#define SIZEOF_GASNET_REGISTER_VALUE_T SIZEOF_GEX_RMA_VALUE_T
#define GASNET_INVALID_HANDLE GEX_EVENT_INVALID
#define GASNET_HSL_INITIALIZER GEX_HSL_INITIALIZER

GEX_WEFT_BEGIN_C

extern int gex_weft_init1(int *argc, char ***argv, const gex_weft_build_t *build);
extern int gasnet_attach(gasnet_handlerentry_t *table, int count, uintptr_t segment_size, uintptr_t min_heap_offset);
extern void gasnet_QueryGexObjects(gex_Client_t *client, gex_EP_t *ep, gex_TM_t *tm, gex_Segment_t *segment);
/* The team of the whole job. */
extern gex_TM_t gex_weft_tm0(void);

GEX_WEFT_INLINE int gasnet_init(int *argc, char ***argv) {
  const gex_weft_build_t build = gex_weft_build_of_this_object();
  return gex_weft_init1(argc, argv, &build);
}

GEX_WEFT_INLINE gasnet_node_t gasnet_mynode(void) { return gex_System_QueryJobRank(); }
GEX_WEFT_INLINE gasnet_node_t gasnet_nodes(void) { return gex_System_QueryJobSize(); }
/* Not public, but old clients use it. */
#define gasneti_mynode (gex_System_QueryJobRank())

GEX_WEFT_INLINE void gasnet_hsl_init(gasnet_hsl_t *hsl) { gex_HSL_Init(hsl); }
GEX_WEFT_INLINE void gasnet_hsl_destroy(gasnet_hsl_t *hsl) { gex_HSL_Destroy(hsl); }
GEX_WEFT_INLINE void gasnet_hsl_lock(gasnet_hsl_t *hsl) { gex_HSL_Lock(hsl); }
GEX_WEFT_INLINE void gasnet_hsl_unlock(gasnet_hsl_t *hsl) { gex_HSL_Unlock(hsl); }
GEX_WEFT_INLINE int gasnet_hsl_trylock(gasnet_hsl_t *hsl) { return gex_HSL_Trylock(hsl); }

/* Handlers never interrupt a client: they run in calls that poll. */
#define gasnet_hold_interrupts() ((void)0)
#define gasnet_resume_interrupts() ((void)0)

GEX_WEFT_END_C

#endif
