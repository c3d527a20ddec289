// Shared memory is taken by use, and if there is none the error says which ranks hold it.
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "errors.h"
#include "memory_store.h"
#include "scarce_memory.h"

namespace {

using namespace ringcomm;
using check::contains;
using check::error_of;
using ranks::group_config;
using ranks::kPatience;
using ranks::MemoryStore;
using ranks::with_group;

constexpr Reduce kSum{DType::kFloat32, ReduceOp::kSum};
constexpr std::size_t kLarge = 100'000;

void all_reduce(Communicator& communicator, std::size_t count) {
  std::vector<float> data(count, 1.0f);
  communicator.all_reduce(data.data(), data.data(), count, kSum, kPatience);
  CHECK(data == std::vector<float>(count, static_cast<float>(communicator.world_size())));
}

std::shared_ptr<shm::Message> message(shm::Message::Kind kind, int peer,
                                      std::vector<std::byte>& data) {
  auto message = std::make_shared<shm::Message>();
  message->kind = kind;
  message->peer = peer;
  message->tag = 0;
  message->dtype = DType::kUInt8;
  message->data = data.data();
  message->count = data.size();
  message->deadline = Deadline::in(kPatience);
  message->on_done = [](std::exception_ptr error) {
    if (error) std::rethrow_exception(error);
  };
  return message;
}

// From rank 0 to rank 1.
void send(Communicator& communicator) {
  std::vector<std::byte> data(100'000);
  if (communicator.rank() > 1) return;
  const bool sends = communicator.rank() == 0;
  const auto posted =
      message(sends ? shm::Message::Kind::kSend : shm::Message::Kind::kRecv, sends ? 1 : 0, data);
  communicator.post(posted);
  CHECK(communicator.wait(*posted, kPatience));
}

TEST(memory_is_taken_by_use) {
  constexpr int n = 4;
  const shm::Geometry geometry(n);
  std::atomic<std::size_t> total{0};
  with_group(n, "auto", [&](Communicator& c) {
    const shm::Usage& usage = c.group().segment().usage();
    std::size_t expected = c.rank() == 0 ? geometry.base_nbytes : 0;
    CHECK_EQ(usage.nbytes(), expected);
    for (int i = 0; i < 5; ++i) all_reduce(c, 500);
    c.barrier(kPatience);
    expected += geometry.announcements_nbytes();
    CHECK_EQ(usage.nbytes(), expected);
    total += expected;
    send(c);
    if (c.rank() == 0) expected += geometry.mail.stride;
    CHECK_EQ(usage.nbytes(), expected);
    for (int i = 0; i < 5; ++i) all_reduce(c, geometry.eager_nbytes / sizeof(float));
    expected += geometry.payloads_nbytes;
    CHECK_EQ(usage.nbytes(), expected);
    for (int i = 0; i < 5; ++i) all_reduce(c, kLarge);
    expected += shm::kLanes * geometry.outbox_nbytes;
    CHECK_EQ(usage.nbytes(), expected);
  });
  CHECK(total < 512 << 10);
  CHECK(100 * total < std::size_t{64} << 20);
}

TEST(memory_is_given_back_and_taken_again) {
  for (const bool has_memfds : {true, false}) {
    const host::Restored restored;
    host::has_memfds = has_memfds;
    with_group(4, "auto", [](Communicator& c) {
      const shm::Usage& usage = c.group().segment().usage();
      const shm::Geometry& geometry = c.group().geometry();
      const std::size_t box = c.rank() == 0 ? geometry.mail.stride - shm::kPage : 0;
      for (int round = 0; round < 5; ++round) {
        all_reduce(c, geometry.eager_nbytes / sizeof(float));
        all_reduce(c, kLarge);
        send(c);
        const std::size_t before = usage.nbytes();
        c.give_back(kPatience);
        CHECK_EQ(usage.nbytes(),
                 before - geometry.payloads_nbytes - shm::kLanes * geometry.outbox_nbytes - box);
      }
    });
  }
}

// Whose other end waits until the memory would have been given back.
TEST(memory_stays_while_messages_are_under_way) {
  with_group(2, "auto", [](Communicator& c) {
    all_reduce(c, kLarge);
    const std::size_t before = c.group().segment().usage().nbytes();
    std::vector<std::byte> data(100);
    const bool receives = c.rank() == 0;
    const auto received = message(shm::Message::Kind::kRecv, 1, data);
    if (receives) c.post(received);
    const ErrorKind kind = receives ? ErrorKind::kInvalidArgument : ErrorKind::kMismatch;
    const std::string text = error_of(kind, [&] { c.give_back(kPatience); });
    CHECK(contains(text, "rank 0 cannot give back its shared memory: messages"));
    CHECK_EQ(c.group().segment().usage().nbytes(), before);
    const auto sent = message(shm::Message::Kind::kSend, 0, data);
    if (!receives) c.post(sent);
    CHECK(c.wait(receives ? *received : *sent, kPatience));
    c.give_back(kPatience);
    CHECK(c.group().segment().usage().nbytes() < before);
    all_reduce(c, kLarge);
  });
}

// In /dev/shm there is little.
TEST(named_memory_is_used_in_one_place) {
  const host::Restored restored;
  host::has_memfds = false;
  const shm::Geometry geometry(2);
  with_group(2, "auto", [&](Communicator& c) {
    all_reduce(c, geometry.eager_nbytes / sizeof(float));
    all_reduce(c, kLarge);
    const std::size_t base = c.rank() == 0 ? geometry.base_nbytes : 0;
    CHECK_EQ(c.group().segment().usage().nbytes(),
             base + geometry.announcements_nbytes() + shm::kLanes * geometry.slots_nbytes);
  });
}

TEST(a_group_for_devices_alone_takes_little) {
  constexpr int n = 4;
  MemoryStore store;
  ranks::on_threads(n, [&](int r) {
    shm::Group group(store, ranks::group_config(r, n));
    group.board().join({1, 2, 3, 4});
    group.board().send_unique_id_to_all({});
    Call call = make_call(Collective::kBarrier, 0, DType::kUInt8);
    call.sequence = 1;
    group.board().enqueue(call);
    CHECK(group.segment().usage().nbytes() <= shm::Geometry(n).base_nbytes + 4 * shm::kPage);
  });
}

TEST(all_to_all_of_which_some_ranks_have_little_to_say) {
  constexpr int n = 4;
  with_group(n, "auto", [](Communicator& c) {
    for (int round = 0; round < 4; ++round) {
      const int loud = round;  // the one rank whose blocks are large
      const auto count_of = [&](int r) { return r == loud ? std::size_t{kLarge} : std::size_t{3}; };
      std::vector<std::int32_t> in(n * count_of(c.rank()), c.rank());
      std::vector<std::vector<std::int32_t>> out(n);
      std::vector<Input> inputs;
      std::vector<Output> outputs;
      for (int r = 0; r < n; ++r) {
        out[r].resize(count_of(r));
        inputs.push_back({in.data() + r * count_of(c.rank()), count_of(c.rank())});
        outputs.push_back({out[r].data(), out[r].size()});
      }
      c.all_to_all(inputs, outputs, DType::kInt32, kPatience);
      for (int r = 0; r < n; ++r) CHECK(out[r] == std::vector<std::int32_t>(count_of(r), r));
    }
  });
}

TEST(a_lack_of_memory_says_how_much_each_rank_holds) {
  const host::Restored restored;
  MemoryStore store;
  Communicator other(store, group_config(0, 1, "the other"), Selection{});
  all_reduce(other, 10);
  for (const bool has_memfds : {true, false}) {
    host::has_memfds = has_memfds;
    MemoryStore scarce;
    ranks::on_threads(2, [&](int r) {
      Communicator c(scarce, group_config(r, 2, "dp"), Selection{});
      all_reduce(c, 10);
      const shm::Geometry& geometry = c.group().geometry();
      if (r == 0) host::file_nbytes = static_cast<off_t>(geometry.outboxes.at);
      c.barrier(kPatience);
      const std::string text = error_of(ErrorKind::kSystem, [&] { all_reduce(c, kLarge); });
      for (const std::string& part :
           {std::string("in group \"dp\": there is no shared memory for its outboxes: "),
            "(" + std::to_string(shm::kLanes * geometry.outbox_nbytes) + " bytes) needed",
            std::string("No space left on device (errno 28)"), std::string(" groups: "),
            "as rank 0 of 1 in group \"the other\" (base " +
                std::to_string(shm::Geometry(1).base_nbytes / 1024) + " KiB, announcements ",
            std::string(has_memfds ? "more memory (docker run --memory" : "--shm-size=1g"),
            std::string(has_memfds ? "of memory free" : "of /dev/shm's")}) {
        CHECK_CONTAINS(text, part);
      }
      CHECK(c.group().broken());
    });
    host::file_nbytes = std::numeric_limits<off_t>::max();
  }
}

TEST(a_message_without_memory_is_refused_and_breaks_nothing) {
  const host::Restored restored;
  with_group(2, "auto", [](Communicator& c) {
    all_reduce(c, kLarge);
    if (c.rank() == 0) {
      host::file_nbytes = static_cast<off_t>(c.group().geometry().mail.at);
      host::no_memory = EFBIG;
      std::vector<std::byte> data(10);
      const std::string text = error_of(
          ErrorKind::kSystem, [&] { c.post(message(shm::Message::Kind::kSend, 1, data)); });
      CHECK_CONTAINS(text, "for its mail boxes");
      CHECK_CONTAINS(text, "ulimit -f");
      host::file_nbytes = std::numeric_limits<off_t>::max();
    }
    c.barrier(kPatience);
    send(c);
    all_reduce(c, kLarge);
  });
}

}  // namespace
