/* Addresses of memory. Included by gasnet_weft.h. */
#ifndef WEFT_GEX_X_MEMORY_H
#define WEFT_GEX_X_MEMORY_H

/* GEX_FLAG_SELF_SEG_OFFSET, GEX_FLAG_PEER_SEG_OFFSET and GEX_FLAG_SCRATCH_SEG_OFFSET have the document's effect. */
#define GEXW_SUPPORTS_SEG_OFFSET 1

/* GEX_FLAG_LC_COPY_YES and GEX_FLAG_LC_COPY_NO decide whether puts copy their sources. */
#define GEXW_SUPPORTS_LC_COPY 1

/* A flag of gex_Client_Init: other ranks may access all memory of this process, by gex_RMA calls with
 * GEX_FLAG_PEER_SEG_UNKNOWN or GEX_FLAG_PEER_SEG_SOME. Bits 24 and above belong to extensions. */
#define GEXW_SUPPORTS_OPEN_ADDRESS_SPACE 1
#define GEXW_FLAG_OPEN_ADDRESS_SPACE GEX_WEFT_FLAG(24)

#endif
