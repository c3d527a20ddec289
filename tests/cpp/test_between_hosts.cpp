// What is chosen across hosts.
#include <cmath>

#include "check.h"
#include "errors.h"
#include "plan/network.h"

using ringcomm::doubling_pays_up_to;
using ringcomm::one_shot_pays_up_to;

TEST(two_hosts_always_exchange) {
  CHECK(std::isinf(doubling_pays_up_to(2, {.latency = 0, .overhead = 0, .bandwidth = 1e9})));
}

// Rings of 4 hosts take 6 latencies for 1.5 times the bytes sent and 0.75 times added, doubling 2
// for 2 and 2: they are equal where 4 latencies are what half the bytes and 1.25 times take, which
// is 307 KB for 50 us, and 61 MB for 10 ms.
TEST(latency_against_volume) {
  CHECK_EQ(doubling_pays_up_to(4, {.latency = 50e-6, .overhead = 0, .bandwidth = 1.25e9}),
           256.0 * 1024);
  CHECK_EQ(doubling_pays_up_to(4, {.latency = 10e-3, .overhead = 0, .bandwidth = 1.25e9}),
           32.0 * 1024 * 1024);
  CHECK_EQ(doubling_pays_up_to(4, {.latency = 0, .overhead = 0, .bandwidth = 1.25e9}), 0.0);
}

TEST(a_link_has_to_have_a_bandwidth) {
  CHECK_THROWS(doubling_pays_up_to(4, {.latency = 1, .overhead = 0, .bandwidth = 0}),
               std::invalid_argument);
}

// 1 ms of 1 Gbit/s, and 50 us for the ranks, are 131,250 bytes: of 2 ranks to 1 other host half of
// it each, to 3 others a sixth.
TEST(a_latency_is_worth_its_bytes) {
  const ringcomm::Link across{.latency = 1e-3, .overhead = 0, .bandwidth = 0.125e9};
  CHECK_EQ(one_shot_pays_up_to(2, 2, across), 65'625.0);
  CHECK_EQ(std::round(one_shot_pays_up_to(4, 2, across)), 21'875.0);
}
