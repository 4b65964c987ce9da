/* The GASNet-1 layer. C99 and C++11. */
#include "job.h"

#define SEGMENT_BYTES ((uintptr_t)1 << 20)

enum { SHORT_REQUEST = 128, SHORT_REPLY, MEDIUM_REQUEST, MEDIUM_REPLY, LONG_REQUEST, LONG_REPLY };

static gasnett_atomic_t replies = gasnett_atomic_init(0);
static gasnet_hsl_t lock = GASNET_HSL_INITIALIZER;
static int guarded;

GASNETT_BEGIN_EXTERNC
static void short_request(gasnet_token_t token, gasnet_handlerarg_t a) {
  gasnet_node_t source = (gasnet_node_t)-1;
  OK(gasnet_AMGetMsgSource(token, &source));
  CHECK(source < gasnet_nodes());
  gasnet_hsl_lock(&lock);
  guarded++;
  gasnet_hsl_unlock(&lock);
  OK(gasnet_AMReplyShort2(token, SHORT_REPLY, a, a + 1));
}
static void short_reply(gasnet_token_t token, gasnet_handlerarg_t a, gasnet_handlerarg_t b) {
  (void)token;
  CHECK(b == a + 1);
  gasnett_atomic_increment(&replies, GASNETT_ATOMIC_REL);
}
static void medium_request(gasnet_token_t token, void *bytes, size_t count) {
  OK(gasnet_AMReplyMedium(token, MEDIUM_REPLY, bytes, count, 5));
}
static void medium_reply(gasnet_token_t token, void *bytes, size_t count, gasnet_handlerarg_t a) {
  (void)token;
  CHECK(a == 5 && count == 6 && !memcmp(bytes, "medium", 6));
  gasnett_atomic_increment(&replies, GASNETT_ATOMIC_REL);
}
static void long_request(gasnet_token_t token, void *bytes, size_t count, gasnet_handlerarg_t high,
                         gasnet_handlerarg_t low) {
  void *target = (void *)(((uintptr_t)(uint32_t)high << 32) | (uint32_t)low);
  OK(gasnet_AMReplyLong0(token, LONG_REPLY, bytes, count, target));
}
static void long_reply(gasnet_token_t token, void *bytes, size_t count) {
  (void)token;
  CHECK(count == 4 && !memcmp(bytes, "long", 4));
  gasnett_atomic_increment(&replies, GASNETT_ATOMIC_REL);
}
GASNETT_END_EXTERNC

static gasnet_handlerentry_t table[] = {
    {SHORT_REQUEST, (gex_AM_Fn_t)short_request},   {SHORT_REPLY, (gex_AM_Fn_t)short_reply},
    {MEDIUM_REQUEST, (gex_AM_Fn_t)medium_request}, {MEDIUM_REPLY, (gex_AM_Fn_t)medium_reply},
    {LONG_REQUEST, (gex_AM_Fn_t)long_request},     {LONG_REPLY, (gex_AM_Fn_t)long_reply},
};

static void messages(gasnet_node_t node, char *slot, uintptr_t back) {
  const gasnett_atomic_val_t before = gasnett_atomic_read(&replies, 0);
  OK(gasnet_AMRequestShort1(node, SHORT_REQUEST, 12));
  OK(gasnet_AMRequestShort(node, SHORT_REQUEST, 13));
  OK(gasnet_AMRequestMedium0(node, MEDIUM_REQUEST, "medium", 6));
  OK(gasnet_AMRequestLong2(node, LONG_REQUEST, "long", 4, slot, (gasnet_handlerarg_t)(back >> 32),
                           (gasnet_handlerarg_t)back));
  GASNET_BLOCKUNTIL(gasnett_atomic_read(&replies, 0) == before + 4);
  OK(gasnet_AMRequestLongAsync(node, LONG_REQUEST, "long", 4, slot, (gasnet_handlerarg_t)(back >> 32),
                               (gasnet_handlerarg_t)back));
  GASNET_BLOCKUNTIL(gasnett_atomic_read(&replies, 0) == before + 5);
}

static void blocking(gasnet_node_t node, char *slot) {
  char out[64], in[64];
  memset(out, 'o', sizeof(out));
  gasnet_put(node, slot, out, sizeof(out));
  gasnet_get(in, node, slot, sizeof(in));
  CHECK(!memcmp(in, out, sizeof(in)));
  memset(out, 'b', sizeof(out));
  gasnet_put_bulk(node, slot, out, sizeof(out));
  gasnet_get_bulk(in, node, slot, sizeof(in));
  CHECK(!memcmp(in, out, sizeof(in)));
  gasnet_memset(node, slot, 'm', 5000);
  CHECK(gasnet_get_val(node, slot + 4999, 1) == 'm' && gasnet_get_val(node, slot, 2) == 'm' * 257);
  gasnet_wait_syncnb(gasnet_memset_nb(node, slot, 'n', 10));
  gasnet_memset_nbi(node, slot + 10, 'i', 10);
  gasnet_wait_syncnbi_puts();
  CHECK(gasnet_get_val(node, slot + 9, 1) == 'n' && gasnet_get_val(node, slot + 10, 1) == 'i');
  gasnet_put_val(node, slot, 0x1234, 2);
  CHECK(gasnet_get_val(node, slot, 2) == 0x1234);
  CHECK(gasnet_wait_syncnb_valget(gasnet_get_nb_val(node, slot, 2)) == 0x1234);
}

static void handles(gasnet_node_t node, char *slot) {
  gasnet_handle_t handle[4];
  char in[4];
  int i;
  handle[0] = gasnet_put_nb(node, slot, "a", 1);
  handle[1] = gasnet_put_nb_bulk(node, slot + 1, "b", 1);
  handle[2] = gasnet_put_nb_val(node, slot + 2, 'c', 1);
  handle[3] = GASNET_INVALID_HANDLE;
  gasnet_wait_syncnb_all(handle, 4);
  for (i = 0; i < 3; i++) handle[i] = gasnet_get_nb(&in[i], node, slot + i, 1);
  handle[3] = gasnet_get_nb_bulk(&in[3], node, slot, 1);
  while (gasnet_try_syncnb_all(handle, 4) == GASNET_ERR_NOT_READY) {
  }
  CHECK(!memcmp(in, "abca", 4));
  handle[0] = gasnet_put_nb(node, slot, "d", 1);
  gasnet_wait_syncnb_some(handle, 4);
  OK(gasnet_try_syncnb_some(handle, 4));
  OK(gasnet_try_syncnb_some_nopoll(handle, 4));
  OK(gasnet_try_syncnb_all_nopoll(handle, 4));
  OK(gasnet_try_syncnb(GASNET_INVALID_HANDLE));
  OK(gasnet_try_syncnb_nopoll(GASNET_INVALID_HANDLE));
  gasnet_wait_syncnb(GASNET_INVALID_HANDLE);
}

static void implicit(gasnet_node_t node, char *slot) {
  char in[3];
  gasnet_put_nbi(node, slot, "x", 1);
  gasnet_put_nbi_bulk(node, slot + 1, "y", 1);
  gasnet_put_nbi_val(node, slot + 2, 'z', 1);
  gasnet_wait_syncnbi_puts();
  OK(gasnet_try_syncnbi_puts());
  OK(gasnet_try_syncnbi_puts_nopoll());
  gasnet_begin_nbi_accessregion();
  gasnet_get_nbi(in, node, slot, 1);
  gasnet_get_nbi_bulk(in + 1, node, slot + 1, 2);
  gasnet_wait_syncnb(gasnet_end_nbi_accessregion());
  CHECK(!memcmp(in, "xyz", 3));
  gasnet_wait_syncnbi_gets();
  gasnet_wait_syncnbi_all();
  OK(gasnet_try_syncnbi_gets());
  OK(gasnet_try_syncnbi_all());
}

int main(int argc, char **argv) {
  gasnet_seginfo_t info[64];
  gasnet_node_t node;
  OK(gasnet_init(&argc, &argv));
  rank = gasnet_mynode();
  size = gasnet_nodes();
  CHECK(gasneti_mynode == rank);
  OK(gasnet_attach(table, sizeof(table) / sizeof(table[0]), SEGMENT_BYTES, 0));
  gasnet_QueryGexObjects(&client, &ep, &tm, &segment);
  CHECK(gex_TM_QueryRank(tm) == rank && gex_EP_QuerySegment(ep) == segment && gex_TM_QueryClient(tm) == client);
  CHECK(gasnet_AMMaxArgs() == 16 && gasnet_AMMaxMedium() >= 512);
  CHECK(gasnet_AMMaxLongRequest() >= 512 && gasnet_AMMaxLongReply() >= 512);
  OK(gasnet_getSegmentInfo(info, (int)size));
  gasnet_hold_interrupts();
  gasnet_resume_interrupts();
  barrier();
  for (node = 0; node < size; node++) {
    char *slot = (char *)info[node].addr + (size_t)rank * 16384;
    messages(node, slot, (uintptr_t)info[rank].addr + SEGMENT_BYTES / 2 + node * 64);
    blocking(node, slot);
    handles(node, slot);
    implicit(node, slot);
  }
  barrier();
  CHECK(guarded == 2 * (int)size);
  finish();
}
