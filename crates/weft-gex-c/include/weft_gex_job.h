/* The job, clients, segments, endpoints and teams. Included by gasnetex.h. */
#ifndef WEFT_GEX_JOB_H
#define WEFT_GEX_JOB_H

GEX_WEFT_BEGIN_C

/* The job. */
extern gex_Rank_t gex_System_QueryJobRank(void);
extern gex_Rank_t gex_System_QueryJobSize(void);
extern void gex_System_QueryNbrhdInfo(gex_RankInfo_t **info, gex_Rank_t *count, gex_Rank_t *own_index);
extern void gex_System_QueryHostInfo(gex_RankInfo_t **info, gex_Rank_t *count, gex_Rank_t *own_index);
extern void gex_System_QueryMyPosition(gex_Rank_t *nbrhd_count, gex_Rank_t *nbrhd_index, gex_Rank_t *host_count,
                                       gex_Rank_t *host_index);
extern uint64_t gex_System_QueryMaxThreads(void);
extern int gex_System_QueryHiddenAMConcurrencyLevel(void);
extern int gex_System_QueryProgressThreads(gex_Client_t client, unsigned int *count,
                                           const gex_ProgressThreadInfo_t **info, gex_Flags_t flags);
extern int gex_System_GetVerboseErrors(void);
extern void gex_System_SetVerboseErrors(int enable);

/* The data of inline accesses: the team of all ranks, and the segments of its ranks that are mapped here. All zeros until
 * the library fills it: calls of other shared objects, which have one of their own, take the functions. */
typedef struct {
  uintptr_t base; /* the address in the owner's process */
  uintptr_t bytes;
  uintptr_t shift; /* the address in this process, less base */
} gex_weft_segment_t;
typedef struct {
  gex_TM_t tm;
  const gex_weft_segment_t *segments;
  gex_Rank_t ranks;
  gex_Rank_t rank;
} gex_weft_world_t;
extern gex_weft_world_t gex_weft_world;

/* Clients. The library compares `build` with its own before anything else. */
typedef struct {
  size_t size; /* of this structure */
  unsigned int spec_major, spec_minor;
  unsigned int threads; /* 1: SEQ, 2: PAR, 3: SEQ with GEXW_RCV_THREAD */
  unsigned int debug;   /* 1: GASNET_DEBUG is defined */
  const char *conduit;
  gex_weft_world_t *world;
} gex_weft_build_t;

extern int gex_weft_Client_Init(gex_Client_t *client, gex_EP_t *ep, gex_TM_t *tm, const char *name, int *argc,
                                char ***argv, gex_Flags_t flags, const gex_weft_build_t *build);

GEX_WEFT_INLINE gex_weft_build_t gex_weft_build_of_this_object(void) {
  gex_weft_build_t build;
  build.size = sizeof(build);
  build.spec_major = GEX_SPEC_VERSION_MAJOR;
  build.spec_minor = GEX_SPEC_VERSION_MINOR;
  build.threads = GEX_WEFT_MODE_NUMBER;
  build.debug = GEX_WEFT_DEBUG_NUMBER;
  build.conduit = GASNET_CONDUIT_NAME_STR;
  build.world = &gex_weft_world;
  return build;
}

GEX_WEFT_INLINE int gex_Client_Init(gex_Client_t *client, gex_EP_t *ep, gex_TM_t *tm, const char *name, int *argc,
                                    char ***argv, gex_Flags_t flags) {
  const gex_weft_build_t build = gex_weft_build_of_this_object();
  return gex_weft_Client_Init(client, ep, tm, name, argc, argv, flags, &build);
}

extern const char *gex_Client_QueryName(gex_Client_t client);
extern gex_Flags_t gex_Client_QueryFlags(gex_Client_t client);
extern void gex_Client_SetCData(gex_Client_t client, const void *cdata);
extern void *gex_Client_QueryCData(gex_Client_t client);

/* Segments. */
extern int gex_Segment_Attach(gex_Segment_t *segment, gex_TM_t tm, uintptr_t size);
extern int gex_Segment_Create(gex_Segment_t *segment, gex_Client_t client, gex_Addr_t address, uintptr_t size,
                              gex_MK_t kind, gex_Flags_t flags);
extern void gex_Segment_Destroy(gex_Segment_t segment, gex_Flags_t flags);
extern gex_Client_t gex_Segment_QueryClient(gex_Segment_t segment);
extern gex_Flags_t gex_Segment_QueryFlags(gex_Segment_t segment);
extern void *gex_Segment_QueryAddr(gex_Segment_t segment);
extern uintptr_t gex_Segment_QuerySize(gex_Segment_t segment);
extern void gex_Segment_SetCData(gex_Segment_t segment, const void *cdata);
extern void *gex_Segment_QueryCData(gex_Segment_t segment);
extern int gex_Segment_QueryBound(gex_TM_t tm, gex_Rank_t rank, void **owner_address, void **local_address,
                                  uintptr_t *size);
extern uintptr_t gasnet_getMaxLocalSegmentSize(void);
extern uintptr_t gasnet_getMaxGlobalSegmentSize(void);

/* Endpoints. */
extern int gex_EP_Create(gex_EP_t *ep, gex_Client_t client, gex_EP_Capabilities_t capabilities, gex_Flags_t flags);
extern int gex_EP_RegisterHandlers(gex_EP_t ep, gex_AM_Entry_t *table, size_t count);
extern int gex_EP_BindSegment(gex_EP_t ep, gex_Segment_t segment, gex_Flags_t flags);
extern int gex_EP_PublishBoundSegment(gex_TM_t tm, gex_EP_t *eps, size_t count, gex_Flags_t flags);
extern gex_Event_t gex_EP_QueryBoundSegmentNB(gex_TM_t tm, gex_Rank_t rank, void **owner_address,
                                              void **local_address, uintptr_t *size, gex_Flags_t flags);
extern gex_Client_t gex_EP_QueryClient(gex_EP_t ep);
extern gex_Flags_t gex_EP_QueryFlags(gex_EP_t ep);
extern gex_Segment_t gex_EP_QuerySegment(gex_EP_t ep);
extern gex_EP_Index_t gex_EP_QueryIndex(gex_EP_t ep);
extern void gex_EP_SetCData(gex_EP_t ep, const void *cdata);
extern void *gex_EP_QueryCData(gex_EP_t ep);

/* Teams. */
extern size_t gex_TM_Split(gex_TM_t *new_tm, gex_TM_t parent, int color, int key, void *scratch, size_t scratch_size,
                           gex_Flags_t flags);
extern size_t gex_TM_Create(gex_TM_t *new_tms, size_t new_count, gex_TM_t parent, gex_EP_Location_t *members,
                            size_t member_count, gex_Addr_t *scratch, size_t scratch_size, gex_Flags_t flags);
extern int gex_TM_Destroy(gex_TM_t tm, gex_Memvec_t *scratch, gex_Flags_t flags);
extern gex_TM_t gex_TM_Pair(gex_EP_t local_ep, gex_EP_Index_t remote_index);
extern gex_Rank_t gex_TM_TranslateRankToJobrank(gex_TM_t tm, gex_Rank_t rank);
extern gex_Rank_t gex_TM_TranslateJobrankToRank(gex_TM_t tm, gex_Rank_t jobrank);
extern gex_EP_Location_t gex_TM_TranslateRankToEP(gex_TM_t tm, gex_Rank_t rank, gex_Flags_t flags);
extern gex_Client_t gex_TM_QueryClient(gex_TM_t tm);
extern gex_EP_t gex_TM_QueryEP(gex_TM_t tm);
extern gex_Flags_t gex_TM_QueryFlags(gex_TM_t tm);
extern gex_Rank_t gex_TM_QueryRank(gex_TM_t tm);
extern gex_Rank_t gex_TM_QuerySize(gex_TM_t tm);
extern void gex_TM_SetCData(gex_TM_t tm, const void *cdata);
extern void *gex_TM_QueryCData(gex_TM_t tm);

GEX_WEFT_END_C

#endif
