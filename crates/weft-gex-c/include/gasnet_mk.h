/* Kinds of memory. weft offers that of the host; the structures of the others exist so that clients compile. */
#ifndef GASNET_MK_H
#define GASNET_MK_H

#include "gasnetex.h"

GEX_WEFT_BEGIN_C

typedef enum {
  GEX_MK_CLASS_HOST = 0,
  GEX_MK_CLASS_CUDA_UVA = 1,
  GEX_MK_CLASS_HIP = 2,
  GEX_MK_CLASS_ZE = 3
} gex_MK_Class_t;

typedef struct {
  uint64_t gex_flags;
  gex_MK_Class_t gex_class;
  union {
    struct {
      int gex_CUdevice;
    } gex_class_cuda_uva;
    struct {
      int gex_hipDevice;
    } gex_class_hip;
    struct {
      void *gex_zeDevice;
      void *gex_zeContext;
      uint32_t gex_zeMemoryOrdinal;
    } gex_class_ze;
  } gex_args;
} gex_MK_Create_args_t;

extern int gex_MK_Create(gex_MK_t *kind, gex_Client_t client, const gex_MK_Create_args_t *args, gex_Flags_t flags);
extern void gex_MK_Destroy(gex_MK_t kind, gex_Flags_t flags);
extern gex_Client_t gex_MK_QueryClient(gex_MK_t kind);
extern gex_Flags_t gex_MK_QueryFlags(gex_MK_t kind);
extern gex_MK_Class_t gex_MK_QueryClass(gex_MK_t kind);
extern void gex_MK_SetCData(gex_MK_t kind, const void *cdata);
extern void *gex_MK_QueryCData(gex_MK_t kind);

GEX_WEFT_END_C

#endif
