// The interface from C++: handlers without captures, templates over the number of arguments, objects of the library in
// containers. C++11.
#include <atomic>
#include <tuple>
#include <vector>

#include "job.h"

#include <gasnet_coll.h>
#include <gasnet_mk.h>
#include <gasnet_ratomic.h>
#include <gasnet_vis.h>

namespace {

std::atomic<int> sum(0), count(0);

template <typename Function>
gex_AM_Fn_t handler(Function *function) {
  return reinterpret_cast<gex_AM_Fn_t>(function);
}

void add(gex_Token_t, gex_AM_Arg_t a) {
  sum += a;
  count++;
}
void add_two(gex_Token_t, gex_AM_Arg_t a, gex_AM_Arg_t b) { add(nullptr, a + b); }
void add_bytes(gex_Token_t token, void *bytes, size_t length) {
  const auto *values = static_cast<const gex_AM_Arg_t *>(bytes);
  for (size_t i = 0; i < length / sizeof(gex_AM_Arg_t); i++) add(token, values[i]);
}

// Every form of a call is an expression of the right type.
template <typename... Arguments>
int send(gex_Rank_t peer, gex_AM_Index_t index, Arguments... arguments) {
  return sizeof...(arguments) == 1 ? gex_AM_RequestShort1(tm, peer, index, 0, std::get<0>(std::make_tuple(arguments...)))
                                   : GASNET_ERR_BAD_ARG;
}

} // namespace

int main(int argc, char **argv) {
  std::vector<gex_AM_Entry_t> table;
  table.push_back({200, handler(add), GEX_FLAG_AM_SHORT | GEX_FLAG_AM_REQUEST, 1, nullptr, "add"});
  table.push_back({201, handler(add_two), GEX_FLAG_AM_SHORT | GEX_FLAG_AM_REQUEST, 2, nullptr, "add_two"});
  table.push_back({202, handler(add_bytes), GEX_FLAG_AM_MEDIUM | GEX_FLAG_AM_REQUEST, 0, nullptr, nullptr});
  start(&argc, &argv, table.data(), table.size(), GASNET_PAGESIZE);
  barrier();
  const gex_Rank_t peer = (rank + 1) % size;
  const std::vector<gex_AM_Arg_t> values = {3, 4, 5};
  OK(send(peer, 200, 1));
  OK(gex_AM_RequestShort(tm, peer, 201, 0, 1, 1));
  OK(gex_AM_RequestMedium(tm, peer, 202, values.data(), values.size() * sizeof(values[0]), GEX_EVENT_NOW, 0));
  GASNET_BLOCKUNTIL(count == 5);
  CHECK(sum == 15);
  std::vector<gex_Event_t> events;
  std::vector<uint64_t> in(16), out(16);
  auto *target = static_cast<uint64_t *>(segment_of(peer));
  for (size_t i = 0; i < out.size(); i++) {
    out[i] = i * i + rank;
    events.push_back(gex_RMA_PutNB(tm, peer, target + i, &out[i], 8, GEX_EVENT_DEFER, 0));
  }
  gex_Event_WaitAll(events.data(), events.size(), 0);
  gex_Event_Wait(gex_RMA_GetNB(tm, in.data(), peer, target, 8 * in.size(), 0));
  CHECK(in == out);
  finish();
}
