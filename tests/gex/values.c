/* Every value, size and layout of the GASNet-EX interface that clients compile in. C11 and C++11.
 *
 * Integer values are asserted when this file is compiled. Pointer values are no constant expressions: main checks them.
 * The program needs no library. */
#include "gasnet.h"
#include "gasnet_coll.h"
#include "gasnet_mk.h"
#include "gasnet_ratomic.h"
#include "gasnet_vis.h"
#include "gasnet_weft.h"

#ifdef __cplusplus
#define CHECK(condition) static_assert(condition, #condition)
#else
#define CHECK(condition) _Static_assert(condition, #condition)
#endif
#define IS(value, expected) CHECK((value) == (expected))
#define BIT(flag, bit) CHECK((flag) == (gex_Flags_t)1 << (bit))
#define UNSIGNED(type, size) CHECK(sizeof(type) == (size) && (type)-1 > (type)0)
#define AT(type, field, offset) CHECK(offsetof(type, field) == (offset))

/* Switches and versions. */
IS(WEFT_GEX, 1);
IS(GASNET_RELEASE_VERSION_MAJOR, 2025);
IS(GASNET_RELEASE_VERSION_MINOR, 8);
IS(GASNET_RELEASE_VERSION_PATCH, 0);
IS(GEX_SPEC_VERSION_MAJOR, 0);
IS(GEX_SPEC_VERSION_MINOR, 19);
IS(GASNET_SPEC_VERSION_MAJOR, 1);
IS(GASNET_SPEC_VERSION_MINOR, 8);
IS(GASNETT_SPEC_VERSION_MAJOR, 1);
IS(GASNETT_SPEC_VERSION_MINOR, 20);
IS(GASNET_SUPPORTS_AM_CANCEL, 20240418L);
IS(GASNET_SUPPORTS_AM_COMMIT_V2, 20240906L);
IS(GASNET_MAXEPS, 33);
IS(GASNET_NULL_ARGV_OK, 1);
IS(GASNET_HIDDEN_AM_CONCURRENCY_LEVEL, GEX_WEFT_MODE_NUMBER != 1);
IS(GASNET_PAGESIZE, 1 << GASNET_PAGESHIFT);
IS(GASNET_PSHM + GASNET_SEGMENT_FAST + GASNET_HAVE_MK_CLASS_HOST, 3);
IS(GASNET_SUPPORTS_TI_SRCRANK + GASNET_SUPPORTS_TI_EP + GASNET_SUPPORTS_TI_ENTRY + GASNET_SUPPORTS_TI_IS_REQ +
       GASNET_SUPPORTS_TI_IS_LONG,
   5);
#if defined(GASNET_SEGMENT_LARGE) || defined(GASNET_SEGMENT_EVERYTHING) || defined(GASNET_HAVE_MK_CLASS_CUDA_UVA)
#error "a switch of something that weft does not offer is defined"
#endif
#if defined(GASNET_DEBUG) == defined(GASNET_NDEBUG)
#error "exactly one of GASNET_DEBUG and GASNET_NDEBUG must be defined"
#endif
#if defined(GASNET_CONDUIT_SMP) != defined(GASNET_SMP_CONDUIT)
#error "both names of the conduit must be defined"
#endif

/* Plain types. */
UNSIGNED(gex_Rank_t, 4);
UNSIGNED(gex_EP_Index_t, 2);
UNSIGNED(gex_Flags_t, 4);
UNSIGNED(gex_DT_t, 4);
UNSIGNED(gex_OP_t, 4);
UNSIGNED(gex_EP_Capabilities_t, 4);
UNSIGNED(gex_TI_t, sizeof(unsigned));
UNSIGNED(gex_EC_t, sizeof(unsigned));
UNSIGNED(gex_AM_Index_t, 1);
UNSIGNED(gex_RMA_Value_t, 8);
CHECK(sizeof(gex_AM_Arg_t) == 4 && (gex_AM_Arg_t)-1 < 0);
IS(SIZEOF_GEX_RMA_VALUE_T, sizeof(gex_RMA_Value_t));
IS(GEX_RANK_INVALID, 0xFFFFFFFF);
IS(GEX_AM_INDEX_BASE, 128);

/* Objects are as large as pointers. */
IS(sizeof(gex_Client_t), sizeof(void *));
IS(sizeof(gex_EP_t), sizeof(void *));
IS(sizeof(gex_TM_t), sizeof(void *));
IS(sizeof(gex_Segment_t), sizeof(void *));
IS(sizeof(gex_MK_t), sizeof(void *));
IS(sizeof(gex_Token_t), sizeof(void *));
IS(sizeof(gex_AM_SrcDesc_t), sizeof(void *));
IS(sizeof(gex_AD_t), sizeof(void *));
IS(sizeof(gex_Event_t), sizeof(void *));
IS(sizeof(gex_AM_Fn_t), sizeof(void (*)(void)));
IS(sizeof(gex_Addr_t), sizeof(void *));

/* Structures. */
AT(gex_EP_Location_t, gex_rank, 0);
AT(gex_EP_Location_t, gex_ep_index, 4);
AT(gex_Memvec_t, gex_addr, 0);
AT(gex_Memvec_t, gex_len, 8);
IS(sizeof(gex_Memvec_t), 16);
AT(gasnet_memvec_t, addr, offsetof(gex_Memvec_t, gex_addr));
AT(gasnet_memvec_t, len, offsetof(gex_Memvec_t, gex_len));
IS(sizeof(gasnet_memvec_t), sizeof(gex_Memvec_t));
AT(gex_AM_Entry_t, gex_index, 0);
AT(gex_AM_Entry_t, gex_fnptr, 8);
AT(gex_AM_Entry_t, gex_flags, 16);
AT(gex_AM_Entry_t, gex_nargs, 20);
AT(gex_AM_Entry_t, gex_cdata, 24);
AT(gex_AM_Entry_t, gex_name, 32);
IS(sizeof(gex_AM_Entry_t), 40);
AT(gex_Token_Info_t, gex_srcrank, 0);
AT(gex_Token_Info_t, gex_ep, 8);
AT(gex_Token_Info_t, gex_entry, 16);
AT(gex_Token_Info_t, gex_is_req, 24);
AT(gex_Token_Info_t, gex_is_long, 28);
IS(sizeof(gex_RankInfo_t), sizeof(gex_Rank_t));
AT(gex_ProgressThreadInfo_t, gex_device_list, 0);
AT(gex_ProgressThreadInfo_t, gex_thread_roles, 8);
AT(gex_ProgressThreadInfo_t, gex_progress_fn, 16);
AT(gex_ProgressThreadInfo_t, gex_progress_arg, 24);
AT(gex_MK_Create_args_t, gex_flags, 0);
AT(gex_MK_Create_args_t, gex_class, 8);
AT(gex_MK_Create_args_t, gex_args, 16);
AT(gasnet_seginfo_t, addr, 0);
AT(gasnet_seginfo_t, size, 8);
AT(gasnet_nodeinfo_t, host, 0);
AT(gasnet_nodeinfo_t, supernode, 4);
AT(gasnet_nodeinfo_t, offset, 8);
AT(gasnet_handlerentry_t, index, 0);
AT(gasnet_handlerentry_t, fnptr, 8);
IS(sizeof(gasnet_node_t), sizeof(gex_Rank_t));
IS(sizeof(gasnet_handle_t), sizeof(gex_Event_t));

/* Parts of tokens, categories of events, capabilities, roles, kinds of memory. */
IS(GEX_TI_SRCRANK, 1u);
IS(GEX_TI_ENTRY, 2u);
IS(GEX_TI_IS_REQ, 4u);
IS(GEX_TI_IS_LONG, 8u);
IS(GEX_TI_EP, 16u);
IS(GEX_TI_ALL, 31u);
IS(GEX_EC_ALL, ~0u);
IS(GEX_EC_AM, GEX_EC_LC);
IS(GEX_EC_PUT & GEX_EC_LC, GEX_EC_LC);
CHECK(GEX_EC_GET && GEX_EC_RMW && GEX_EC_LC && (GEX_EC_PUT & ~GEX_EC_LC));
IS(GEX_EC_GET & (GEX_EC_PUT | GEX_EC_RMW), 0u);
IS(GEX_EC_RMW & GEX_EC_PUT, 0u);
IS(GEX_EP_CAPABILITY_RMA, 1u);
IS(GEX_EP_CAPABILITY_AM, 2u);
IS(GEX_EP_CAPABILITY_VIS, 4u);
IS(GEX_EP_CAPABILITY_COLL, 8u);
IS(GEX_EP_CAPABILITY_AD, 16u);
IS(GEX_EP_CAPABILITY_ALL, 31u);
IS(GEX_THREAD_ROLE_RCV, 1);
IS(GEX_THREAD_ROLE_SND, 2);
IS((int)GEX_MK_CLASS_HOST, 0);
IS((int)GEX_MK_CLASS_CUDA_UVA, 1);
IS((int)GEX_MK_CLASS_HIP, 2);
IS((int)GEX_MK_CLASS_ZE, 3);
CHECK(GEX_VIS_MAX_PEERCOMPLETION >= 127);

/* Data types and operations. */
IS(GEX_DT_I32, 1u << 0);
IS(GEX_DT_U32, 1u << 1);
IS(GEX_DT_I64, 1u << 2);
IS(GEX_DT_U64, 1u << 3);
IS(GEX_DT_FLT, 1u << 4);
IS(GEX_DT_DBL, 1u << 5);
IS(GEX_DT_USER, 1u << 6);
IS(GEX_DT_U64, GEX_OP_ADD);
#define OPERATION(name, fetching, bit)                                                                                 \
  IS(GEX_OP_##name, 1u << (bit));                                                                                      \
  IS(GEX_OP_##fetching, 1u << ((bit) + 15));                                                                           \
  IS(GEX_OP_TO_FETCHING(GEX_OP_##name), GEX_OP_##fetching);                                                            \
  IS(GEX_OP_TO_NONFETCHING(GEX_OP_##fetching), GEX_OP_##name)
OPERATION(AND, FAND, 0);
OPERATION(OR, FOR, 1);
OPERATION(XOR, FXOR, 2);
OPERATION(ADD, FADD, 3);
OPERATION(SUB, FSUB, 4);
OPERATION(MULT, FMULT, 5);
OPERATION(MIN, FMIN, 6);
OPERATION(MAX, FMAX, 7);
OPERATION(INC, FINC, 8);
OPERATION(DEC, FDEC, 9);
OPERATION(SET, SWAP, 10);
OPERATION(CAS, FCAS, 11);
IS(GEX_OP_CSWAP, GEX_OP_FCAS);
IS(GEX_OP_GET, 1u << 27);
IS(GEX_OP_USER, 1u << 30);
IS(GEX_OP_USER_NC, 1u << 31);

/* Flags. */
BIT(GEX_FLAG_IMMEDIATE, 0);
BIT(GEX_FLAG_SELF_SEG_UNKNOWN, 3);
BIT(GEX_FLAG_SELF_SEG_SOME, 4);
BIT(GEX_FLAG_SELF_SEG_BOUND, 5);
BIT(GEX_FLAG_SELF_SEG_OFFSET, 6);
BIT(GEX_FLAG_PEER_SEG_UNKNOWN, 7);
BIT(GEX_FLAG_PEER_SEG_SOME, 8);
BIT(GEX_FLAG_PEER_SEG_BOUND, 9);
BIT(GEX_FLAG_PEER_SEG_OFFSET, 10);
BIT(GEX_FLAG_PEER_NEVER_NBRHD, 14);
BIT(GEX_FLAG_PEER_NEVER_SELF, 15);
BIT(GEX_FLAG_LC_COPY_YES, 16);
BIT(GEX_FLAG_LC_COPY_NO, 17);
BIT(GEX_FLAG_AM_PREPARE_LEAST_CLIENT, 11);
BIT(GEX_FLAG_AM_PREPARE_LEAST_ALLOC, 12);
BIT(GEX_FLAG_AD_REL, 1);
BIT(GEX_FLAG_AD_ACQ, 2);
BIT(GEX_FLAG_AD_MY_RANK, 11);
BIT(GEX_FLAG_AD_MY_NBRHD, 12);
BIT(GEX_FLAG_RANK_IS_JOBRANK, 13);
BIT(GEX_FLAG_AD_FAVOR_MY_RANK, 0);
BIT(GEX_FLAG_AD_FAVOR_MY_NBRHD, 1);
BIT(GEX_FLAG_AD_FAVOR_REMOTE, 2);
BIT(GEX_FLAG_AM_SHORT, 0);
BIT(GEX_FLAG_AM_MEDIUM, 1);
BIT(GEX_FLAG_AM_LONG, 2);
BIT(GEX_FLAG_AM_REQUEST, 3);
BIT(GEX_FLAG_AM_REPLY, 4);
IS(GEX_FLAG_AM_MEDLONG, GEX_FLAG_AM_MEDIUM | GEX_FLAG_AM_LONG);
IS(GEX_FLAG_AM_REQREP, GEX_FLAG_AM_REQUEST | GEX_FLAG_AM_REPLY);
BIT(GEX_FLAG_ENABLE_LEAF_LC, 11);
BIT(GEX_FLAG_USES_GASNET1, 0);
BIT(GEX_FLAG_DEFER_THREADS, 1);
BIT(GEX_FLAG_TM_SCRATCH_SIZE_MIN, 0);
BIT(GEX_FLAG_TM_SCRATCH_SIZE_RECOMMENDED, 1);
BIT(GEX_FLAG_TM_GLOBAL_SCRATCH, 2);
BIT(GEX_FLAG_TM_LOCAL_SCRATCH, 3);
BIT(GEX_FLAG_TM_SYMMETRIC_SCRATCH, 4);
BIT(GEX_FLAG_TM_NO_SCRATCH, 5);
BIT(GEX_FLAG_SCRATCH_SEG_OFFSET, 6);
BIT(GEX_FLAG_GLOBALLY_QUIESCED, 13);
BIT(GEX_FLAG_HINT_ACCEL_AD, 0);
BIT(GEX_FLAG_HINT_ACCEL_COLL, 1);
IS(GEX_FLAG_HINT_ACCEL_ALL, GEX_FLAG_HINT_ACCEL_AD | GEX_FLAG_HINT_ACCEL_COLL);

/* Errors, flags of barriers, wait modes. */
IS(GASNET_OK, 0);
IS(GASNET_ERR_NOT_INIT, 10001);
IS(GASNET_ERR_RESOURCE, 10002);
IS(GASNET_ERR_BAD_ARG, 10003);
IS(GASNET_ERR_NOT_READY, 10004);
IS(GASNET_ERR_BARRIER_MISMATCH, 10005);
IS(GASNET_BARRIERFLAG_ANONYMOUS, 1);
IS(GASNET_BARRIERFLAG_MISMATCH, 2);
IS(GASNET_BARRIERFLAG_UNNAMED, 9);
IS(GASNET_WAIT_SPIN, 0);
IS(GASNET_WAIT_BLOCK, 1);
IS(GASNET_WAIT_SPINBLOCK, 2);

/* An initialiser by position, as clients write it, and constants. */
static void handler(gex_Token_t token) { (void)token; }
static gex_HSL_t lock = GEX_HSL_INITIALIZER;
static gasnet_hsl_t old_lock = GASNET_HSL_INITIALIZER;

static int failures;
static void equal(const char *what, uintptr_t value, uintptr_t expected) {
  if (value == expected) return;
  printf("%s is %" PRIuPTR ", not %" PRIuPTR "\n", what, value, expected);
  failures++;
}
#define EQUAL(value, expected) equal(#value, (uintptr_t)(value), (uintptr_t)(expected))

/* The program is linked without the library's archives: it has the symbol of its mode itself. */
#ifdef __cplusplus
extern "C"
#endif
const char GEX_WEFT_LINK[] = "values";

int main(void) {
  gex_AM_Entry_t entry = {200, (gex_AM_Fn_t)handler, GEX_FLAG_AM_SHORT | GEX_FLAG_AM_REQUEST, 3, &failures, "name"};
  EQUAL(entry.gex_index, 200);
  EQUAL(entry.gex_nargs, 3);
  EQUAL(entry.gex_cdata, &failures);
  EQUAL(GEX_EVENT_INVALID, 0);
  EQUAL(GEX_EVENT_NO_OP, 1);
  EQUAL(GEX_EVENT_NOW, 1);
  EQUAL(GEX_EVENT_DEFER, 2);
  EQUAL(GEX_EVENT_GROUP, 3);
  EQUAL(GEX_CLIENT_INVALID, 0);
  EQUAL(GEX_EP_INVALID, 0);
  EQUAL(GEX_TM_INVALID, 0);
  EQUAL(GEX_SEGMENT_INVALID, 0);
  EQUAL(GEX_MK_INVALID, 0);
  EQUAL(GEX_MK_HOST, 1);
  EQUAL(GEX_AD_INVALID, 0);
  EQUAL(GEX_AM_SRCDESC_NO_OP, 0);
  EQUAL(GASNET_INVALID_HANDLE, 0);
  EQUAL(gex_HSL_Trylock(&lock), GASNET_OK);
  gex_HSL_Unlock(&lock);
  EQUAL(gasnet_hsl_trylock(&old_lock), GASNET_OK);
  EQUAL(strstr(GASNET_CONFIG_STRING, "RELEASE=2025.8.0,SPEC=0.19,CONDUIT=" GASNET_CONDUIT_NAME_STR "(") != NULL, 1);
  EQUAL(strcmp(_STRINGIFY(GASNET_CORE_NAME), "WEFT"), 0);
  EQUAL(&_gasneti_threadkey_init != NULL, 1);
  return failures != 0;
}
