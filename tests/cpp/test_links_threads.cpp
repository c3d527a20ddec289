// The tests' engine keeps what engines promise, and does to its users what a network can.
#include <chrono>
#include <cstddef>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "engine_contract.h"
#include "errors.h"
#include "memory_network.h"
#include "memory_store.h"

namespace {

using namespace std::chrono_literals;
using contract::kLarge;
using contract::Message;
using contract::Rank;
using contract::wait;
using ranks::Engine;
using ranks::MemoryNetwork;

using Engines = std::vector<std::unique_ptr<Engine>>;

Engines engines_of(MemoryNetwork& network, int world_size) {
  Engines engines;
  for (int r = 0; r < world_size; ++r) engines.push_back(network.engine(r));
  return engines;
}

void keeps_contract(const ranks::NetworkOptions& options) {
  for (const contract::Check& check : contract::kChecks) {
    const auto network = MemoryNetwork::make(options);
    const Engines engines = engines_of(*network, check.world_size);
    ranks::on_threads(check.world_size, [&](int r) {
      Rank rank(*engines[r], r, check.world_size);
      contract::run(check, rank);
    });
    if (::check::failures > 0) std::cout << "in " << check.name << std::endl;
  }
}

TEST(contract_at_once) { keeps_contract({}); }

TEST(contract_with_delays) {
  for (const unsigned seed : {1, 2}) keeps_contract({.seed = seed, .longest_delay = 2ms});
}

TEST(contract_done_in_order) { keeps_contract({.longest_delay = 1ms, .in_order = true}); }

TEST(a_peer_is_lost) {
  const auto network = MemoryNetwork::make();
  const Engines engines = engines_of(*network, 2);
  contract::lost_peer(*engines[0], 0, 1, [&] { network->lose(0, 1, "the cable is out"); });
  CHECK_EQ(engines[0]->failure(1), "the cable is out");
  CHECK_EQ(engines[1]->failure(0), "");
  Message receive;
  engines[1]->recv(0, {0, 0}, receive.bytes, receive.request);
  Message send;
  engines[0]->send(1, {0, 0}, send.bytes, send.request);
  CHECK(send.request.failed());
  engines[0]->progress();
  engines[1]->progress();
  CHECK(receive.request.pending());  // rank 1 does not know
}

TEST(an_engine_goes) {
  const auto network = MemoryNetwork::make({.longest_delay = 1ms});
  Engines engines = engines_of(*network, 2);
  contract::lost_peer(*engines[0], 0, 1, [&] { engines[1].reset(); });
  const auto others = MemoryNetwork::make();
  contract::pending_at_the_end(others->engine(0), 0, 1);
}

// Whether a message of rank 0 arrives at rank 1.
bool arrives(const Engines& engines, std::uint64_t number, std::size_t nbytes) {
  Message send, receive;
  send.bytes.resize(nbytes);
  receive.bytes.resize(nbytes);
  engines[1]->recv(0, {0, number}, receive.bytes, receive.request);
  engines[0]->send(1, {0, number}, send.bytes, send.request);
  for (int i = 0; i < 100; ++i) {
    engines[0]->progress();
    engines[1]->progress();
  }
  const bool arrived = !receive.request.pending();
  engines[0]->cancel(send.request);
  engines[1]->cancel(receive.request);
  return arrived;
}

TEST(silence) {
  const auto network = MemoryNetwork::make();
  const Engines engines = engines_of(*network, 2);
  CHECK(arrives(engines, 0, 100));
  network->silence(1, 0);
  CHECK(arrives(engines, 1, 100));
  CHECK(!arrives(engines, 2, kLarge));  // its sender does not learn that there is room
  network->silence(0, 1);
  CHECK(!arrives(engines, 3, 100));
  CHECK_EQ(engines[0]->failure(1) + engines[1]->failure(0), "");
}

TEST(too_long_for_the_room) {
  const auto network = MemoryNetwork::make();
  const Engines engines = engines_of(*network, 2);
  Message send, receive;
  send.bytes.resize(10);
  receive.bytes.resize(9);
  engines[0]->send(1, {0, 0}, send.bytes, send.request);
  CHECK(wait(*engines[0], send.request));
  while (!engines[0]->flushed()) engines[0]->progress();
  engines[1]->recv(0, {0, 0}, receive.bytes, receive.request);
  CHECK(!wait(*engines[1], receive.request));
}

TEST(cancelled_send) {
  const auto network = MemoryNetwork::make();
  const Engines engines = engines_of(*network, 2);
  Message send, receive;
  send.bytes.resize(kLarge);
  receive.bytes.resize(kLarge);
  engines[0]->send(1, {0, 0}, send.bytes, send.request);
  for (int i = 0; i < 100; ++i) engines[0]->progress();
  CHECK(send.request.pending() && !engines[0]->flushed());
  engines[0]->cancel(send.request);
  CHECK(send.request.failed() && engines[0]->flushed());
  engines[1]->recv(0, {0, 0}, receive.bytes, receive.request);
  engines[1]->progress();
  CHECK(receive.request.pending());
}

TEST(a_tag_is_used_once) {
  const auto engine = MemoryNetwork::make()->engine(0);
  Message send;
  engine->send(1, {0, 0}, send.bytes, send.request);
  CHECK_THROWS(engine->send(1, {0, 0}, send.bytes, send.request), std::logic_error);
}

}  // namespace
