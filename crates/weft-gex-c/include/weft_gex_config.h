/* Mode and conduit of the client, from the defines of the makefile fragment. Included by gasnetex.h.
 *
 * Every object that includes this header names one symbol of its mode and conduit. The archive of that mode, beside the
 * common library, has the symbol. Objects of mixed modes therefore do not link. */
#ifndef WEFT_GEX_CONFIG_H
#define WEFT_GEX_CONFIG_H

#if defined(GASNET_PARSYNC)
#error "GASNET_PARSYNC is not offered: define GASNET_PAR instead (the flags are in include/<conduit>-conduit/*-par.mak)"
#elif defined(GASNET_SEQ) && defined(GASNET_PAR)
#error "GASNET_SEQ and GASNET_PAR are both defined: define one of them, by the flags of one makefile fragment"
#elif !defined(GASNET_SEQ) && !defined(GASNET_PAR)
#error "neither GASNET_SEQ nor GASNET_PAR is defined: compile with the flags of include/<conduit>-conduit/*.mak"
#endif

#if defined(GASNET_DEBUG) && defined(GASNET_NDEBUG)
#error "GASNET_DEBUG and GASNET_NDEBUG are both defined: define at most one of them"
#elif !defined(GASNET_DEBUG) && !defined(GASNET_NDEBUG)
#define GASNET_NDEBUG 1
#endif

#if defined(GASNET_CONDUIT_SMP) && defined(GASNET_CONDUIT_OFI)
#error "GASNET_CONDUIT_SMP and GASNET_CONDUIT_OFI are both defined: compile with the flags of one makefile fragment"
#elif defined(GASNET_CONDUIT_SMP)
#define GASNET_CONDUIT_NAME SMP
#define GASNET_CONDUIT_NAME_STR "SMP"
#ifndef GASNET_SMP_CONDUIT
#define GASNET_SMP_CONDUIT 1
#endif
#elif defined(GASNET_CONDUIT_OFI)
#define GASNET_CONDUIT_NAME OFI
#define GASNET_CONDUIT_NAME_STR "OFI"
#ifndef GASNET_OFI_CONDUIT
#define GASNET_OFI_CONDUIT 1
#endif
#else
#error "no conduit: compile with the flags of include/<conduit>-conduit/*.mak, which define GASNET_CONDUIT_SMP or _OFI"
#endif

#ifdef GASNET_SEQ
#define GEX_WEFT_MODE SEQ
#define GEX_WEFT_MODE_STR "SEQ"
#ifdef GASNET_RCV_THREAD
#define GEX_WEFT_MODE_NUMBER 3
#else
#define GEX_WEFT_MODE_NUMBER 1
#endif
#else
#define GEX_WEFT_MODE PAR
#define GEX_WEFT_MODE_STR "PAR"
#define GEX_WEFT_MODE_NUMBER 2
#endif

#ifdef GASNET_DEBUG
#define GEX_WEFT_DEBUG_NUMBER 1
#else
#define GEX_WEFT_DEBUG_NUMBER 0
#endif

#define GASNET_CONFIG_STRING                                                                                           \
  "RELEASE=2025.8.0,SPEC=0.19,CONDUIT=" GASNET_CONDUIT_NAME_STR "(WEFT-0.1/WEFT-0.1),THREADMODEL=" GEX_WEFT_MODE_STR   \
  ",SEGMENT=FAST,PTR=64bit"

/* The symbol of this mode, and one reference to it in every object. */
#define GEX_WEFT_LINK_JOIN(conduit, mode) gex_weft_link_##conduit##_##mode
#define GEX_WEFT_LINK_NAME(conduit, mode) GEX_WEFT_LINK_JOIN(conduit, mode)
#define GEX_WEFT_LINK GEX_WEFT_LINK_NAME(GASNET_CONDUIT_NAME, GEX_WEFT_MODE)

GEX_WEFT_BEGIN_C
extern const char GEX_WEFT_LINK[];
GEX_WEFT_END_C

static const char *const gex_weft_link_of_this_object __attribute__((__used__)) = GEX_WEFT_LINK;

#endif
