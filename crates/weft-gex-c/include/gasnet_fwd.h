/* Constants and plain types of the GASNet-EX interface. Every other header includes this one.
 *
 * It needs no define, so that headers of clients may include it where no threading mode is known yet. The values are
 * those that clients compile in; tests/gex/values.c asserts each of them. */
#ifndef GASNET_FWD_H
#define GASNET_FWD_H

#include <stddef.h>
#include <stdint.h>

/* Identity of the implementation. */
#define WEFT_GEX 1
#define GASNET_CORE_NAME WEFT
#define GASNET_CORE_NAME_STR "WEFT"
#define GASNET_EXTENDED_NAME WEFT
#define GASNET_EXTENDED_NAME_STR "WEFT"
#define GASNET_CORE_VERSION 0.1
#define GASNET_CORE_VERSION_STR "0.1"
#define GASNET_EXTENDED_VERSION 0.1
#define GASNET_EXTENDED_VERSION_STR "0.1"

/* The interface that the headers describe. Clients compare these numbers. */
#define GASNET_RELEASE_VERSION_MAJOR 2025
#define GASNET_RELEASE_VERSION_MINOR 8
#define GASNET_RELEASE_VERSION_PATCH 0
#define GEX_SPEC_VERSION_MAJOR 0
#define GEX_SPEC_VERSION_MINOR 19
#define GASNET_SPEC_VERSION_MAJOR 1
#define GASNET_SPEC_VERSION_MINOR 8
#define GASNETT_SPEC_VERSION_MAJOR 1
#define GASNETT_SPEC_VERSION_MINOR 20

/* Limits. GASNET_MAXEPS is a bare number because clients take it from preprocessed text. */
#define GASNET_MAXEPS 33
#define GASNET_MAXNODES 2147483647
/* 1: handlers may run in a thread of the library, if the environment asks for one (GASNET_RCV_THREAD). Locks of
 * handlers are real then. A program of SEQ allows it by -DGEXW_RCV_THREAD=1, in all of its objects. */
#if defined(GASNET_PAR) || defined(GEXW_RCV_THREAD)
#define GASNET_HIDDEN_AM_CONCURRENCY_LEVEL 1
#define GASNET_RCV_THREAD 1
#else
#define GASNET_HIDDEN_AM_CONCURRENCY_LEVEL 0
#endif
#define GASNET_PAGESIZE 4096
#define GASNET_PAGESHIFT 12
#define GASNET_ALIGNED_SEGMENTS 0
#define GASNET_NULL_ARGV_OK 1
#define GASNET_PSHM 1
#define GASNET_SEGMENT_FAST 1
#define GASNET_SUPPORTS_AM_CANCEL 20240418L
#define GASNET_SUPPORTS_AM_COMMIT_V2 20240906L
#define GASNET_SUPPORTS_TI_SRCRANK 1
#define GASNET_SUPPORTS_TI_EP 1
#define GASNET_SUPPORTS_TI_ENTRY 1
#define GASNET_SUPPORTS_TI_IS_REQ 1
#define GASNET_SUPPORTS_TI_IS_LONG 1
#define GASNET_HAVE_MK_CLASS_HOST 1
/* Private to implementations, but clients size tables by it. */
#define GASNETI_MAX_THREADS 256

/* Plain types. */
typedef uint32_t gex_Rank_t;
typedef uint16_t gex_EP_Index_t;
typedef uint32_t gex_Flags_t;
typedef uint32_t gex_DT_t;
typedef uint32_t gex_OP_t;
typedef uint32_t gex_EP_Capabilities_t;
typedef unsigned int gex_TI_t;
typedef unsigned int gex_EC_t;
typedef uint8_t gex_AM_Index_t;
typedef int32_t gex_AM_Arg_t;
typedef uint64_t gex_RMA_Value_t;
typedef void *gex_Addr_t;
#define SIZEOF_GEX_RMA_VALUE_T 8

/* Objects. Their content belongs to the library. */
typedef struct gex_weft_client *gex_Client_t;
typedef struct gex_weft_ep *gex_EP_t;
typedef struct gex_weft_tm *gex_TM_t;
typedef struct gex_weft_segment *gex_Segment_t;
typedef struct gex_weft_mk *gex_MK_t;
typedef struct gex_weft_token *gex_Token_t;
typedef struct gex_weft_srcdesc *gex_AM_SrcDesc_t;
typedef struct gex_weft_ad *gex_AD_t;
typedef struct gex_weft_event *gex_Event_t;

typedef struct {
  gex_Rank_t gex_rank;
  gex_EP_Index_t gex_ep_index;
} gex_EP_Location_t;
typedef struct {
  void *gex_addr;
  size_t gex_len;
} gex_Memvec_t;

#define GEX_RANK_INVALID (~(gex_Rank_t)0)
#define GEX_CLIENT_INVALID ((gex_Client_t)(uintptr_t)0)
#define GEX_EP_INVALID ((gex_EP_t)(uintptr_t)0)
#define GEX_TM_INVALID ((gex_TM_t)(uintptr_t)0)
#define GEX_SEGMENT_INVALID ((gex_Segment_t)(uintptr_t)0)
#define GEX_MK_INVALID ((gex_MK_t)(uintptr_t)0)
#define GEX_MK_HOST ((gex_MK_t)(uintptr_t)1)
#define GEX_AD_INVALID ((gex_AD_t)(uintptr_t)0)
#define GEX_AM_SRCDESC_NO_OP ((gex_AM_SrcDesc_t)(uintptr_t)0)
#define GEX_EVENT_INVALID ((gex_Event_t)(uintptr_t)0)
#define GEX_EVENT_NO_OP ((gex_Event_t)(uintptr_t)1)
#define GEX_EVENT_NOW ((gex_Event_t *)(uintptr_t)1)
#define GEX_EVENT_DEFER ((gex_Event_t *)(uintptr_t)2)
#define GEX_EVENT_GROUP ((gex_Event_t *)(uintptr_t)3)

/* Parts of a token's information. */
#define GEX_TI_SRCRANK ((gex_TI_t)1)
#define GEX_TI_ENTRY ((gex_TI_t)2)
#define GEX_TI_IS_REQ ((gex_TI_t)4)
#define GEX_TI_IS_LONG ((gex_TI_t)8)
#define GEX_TI_EP ((gex_TI_t)16)
#define GEX_TI_ALL ((gex_TI_t)31)

/* Categories of events. Local completion of Active Messages and of puts are one category. A put includes its own. */
#define GEX_EC_GET ((gex_EC_t)1)
#define GEX_EC_LC ((gex_EC_t)2)
#define GEX_EC_AM ((gex_EC_t)2)
#define GEX_EC_PUT ((gex_EC_t)(4 | 2))
#define GEX_EC_RMW ((gex_EC_t)8)
#define GEX_EC_ALL (~(gex_EC_t)0)

#define GEX_AM_INDEX_BASE 128

/* Capabilities of endpoints. */
#define GEX_EP_CAPABILITY_RMA ((gex_EP_Capabilities_t)1 << 0)
#define GEX_EP_CAPABILITY_AM ((gex_EP_Capabilities_t)1 << 1)
#define GEX_EP_CAPABILITY_VIS ((gex_EP_Capabilities_t)1 << 2)
#define GEX_EP_CAPABILITY_COLL ((gex_EP_Capabilities_t)1 << 3)
#define GEX_EP_CAPABILITY_AD ((gex_EP_Capabilities_t)1 << 4)
#define GEX_EP_CAPABILITY_ALL ((gex_EP_Capabilities_t)31)

/* Roles of progress threads. */
#define GEX_THREAD_ROLE_RCV 1
#define GEX_THREAD_ROLE_SND 2

/* Errors of calls that return int. */
#define GASNET_OK 0
#define GASNET_ERR_NOT_INIT 10001
#define GASNET_ERR_RESOURCE 10002
#define GASNET_ERR_BAD_ARG 10003
#define GASNET_ERR_NOT_READY 10004
#define GASNET_ERR_BARRIER_MISMATCH 10005

/* Flags of the split-phase barrier, and wait modes. */
#define GASNET_BARRIERFLAG_ANONYMOUS 1
#define GASNET_BARRIERFLAG_MISMATCH 2
#define GASNET_BARRIERFLAG_UNNAMED 9
#define GASNET_WAIT_SPIN 0
#define GASNET_WAIT_BLOCK 1
#define GASNET_WAIT_SPINBLOCK 2

#include "weft_gex_flags.h"
#include "weft_gex_ops.h"

#endif
