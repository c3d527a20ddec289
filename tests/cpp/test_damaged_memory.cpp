// Whatever a bad neighbour writes into a group's shared memory, its ranks raise an Error in time:
// no read or write outside of the buffers, no hang. The random part runs for 5 seconds, or for as
// many as RINGCOMM_DAMAGE_SECONDS says.
//
// Not under ThreadSanitizer: a neighbour that scribbles is a data race.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "errors.h"
#include "memory_store.h"
#include "shm/view.h"

namespace {

using namespace ringcomm;
using namespace std::chrono_literals;
using check::check_error;
using ranks::kPatience;
using ranks::with_group;
using shm::Message;
using Random = std::mt19937_64;

std::shared_ptr<Message> post(Communicator& c, Message::Kind kind, int peer, int tag,
                              std::vector<std::int32_t>& data, Communicator::Timeout timeout,
                              std::exception_ptr& error) {
  auto message = std::make_shared<Message>();
  message->kind = kind;
  message->peer = peer;
  message->tag = tag;
  message->dtype = DType::kInt32;
  message->data = reinterpret_cast<std::byte*>(data.data());
  message->count = data.size();
  message->deadline = Deadline::in(timeout);
  message->on_done = [&error](std::exception_ptr what) { error = what; };
  c.post(message);
  return message;
}

void wait(Communicator& c, const std::shared_ptr<Message>& message,
          const std::exception_ptr& error) {
  if (!c.wait(*message, kPatience)) throw std::runtime_error("a message outlived its deadline");
  if (error) std::rethrow_exception(error);
}

void receive(Communicator& c, int peer, std::size_t count) {
  std::vector<std::int32_t> data(count);
  std::exception_ptr error;
  wait(c, post(c, Message::Kind::kRecv, peer, 1, data, kPatience, error), error);
}

void send(Communicator& c, int peer, std::size_t count) {
  std::vector<std::int32_t> data(count);
  std::exception_ptr error;
  wait(c, post(c, Message::Kind::kSend, peer, 1, data, kPatience, error), error);
}

// Rank 0 has written a message; what damage() does to it must make rank 1 raise.
void check_message(const std::function<void(shm::MailEdge&, shm::MailSlot&)>& damage) {
  with_group(2, "auto", [&](Communicator& c) {
    if (c.rank() == 0) send(c, 1, 100);
    c.barrier(kPatience);
    if (c.rank() == 1) {
      shm::Segment& segment = c.group().segment();
      damage(segment.mail_edge(0, 1), segment.mail_slot(0, 1, 0));
      check_error(
          ErrorKind::kSystem,
          {"the shared memory of the group is damaged", "the mail box of rank 0 for rank 1"},
          [&] { receive(c, 0, 100); });
    }
  });
}

std::string repeated(const std::string& text, std::size_t number) {
  std::string all;
  for (std::size_t i = 0; i < number; ++i) all += text;
  return all;
}

// What a process that is not in the group reads of it.
shm::GroupView seen_by_others(shm::Segment& segment) {
  const int memory = memfd_create("copy", MFD_CLOEXEC);
  const std::size_t nbytes = segment.geometry().base_nbytes;
  CHECK_EQ(write(memory, &segment.header(), nbytes), static_cast<ssize_t>(nbytes));
  CHECK_EQ(ftruncate(memory, static_cast<off_t>(segment.geometry().nbytes)), 0);
  const shm::GroupView seen = shm::view(memory);
  close(memory);
  return seen;
}

TEST(a_damaged_message_is_an_error) {
  check_message([](shm::MailEdge&, shm::MailSlot& slot) { slot.offset = 1 << 30; });
  check_message([](shm::MailEdge&, shm::MailSlot& slot) { slot.nbytes = 1 << 30; });
  check_message([](shm::MailEdge&, shm::MailSlot& slot) { slot.message_nbytes = ~0ull; });
  check_message([](shm::MailEdge&, shm::MailSlot& slot) { slot.dtype = static_cast<DType>(99); });
  check_message([](shm::MailEdge&, shm::MailSlot& slot) { slot.refused = 2; });
  check_message([](shm::MailEdge&, shm::MailSlot& slot) { slot.users.per_element = 0; });
  check_message([](shm::MailEdge&, shm::MailSlot& slot) { slot.users.name.fill('x'); });
  check_message([](shm::MailEdge& edge, shm::MailSlot&) { edge.posted.store(~0ull); });
}

TEST(a_sender_does_not_believe_that_more_was_read_than_it_wrote) {
  std::promise<void> ended;
  with_group(2, "auto", [&](Communicator& c) {
    if (c.rank() == 1) return ended.get_future().wait();
    send(c, 1, 1);
    c.group().segment().mail_edge(0, 1).taken.store(1 << 20);
    check_error(ErrorKind::kSystem, {"is damaged", "the mail box of rank 0 for rank 1"},
                [&] { send(c, 1, 1); });
    ended.set_value();
  });
}

TEST(a_damaged_call_is_an_error) {
  with_group(2, "auto", [](Communicator& c) {
    c.barrier(kPatience);
    if (c.rank() == 1) {
      c.group().use(shm::Area::kAnnouncements);
      shm::Announcement& announcement = c.group().segment().announcement(1, 2);
      std::memset(static_cast<void*>(&announcement.call), 0xff, sizeof(Call));
      announcement.sequence.store(2);
    } else {
      check_error(ErrorKind::kSystem,
                  {"barrier()", "the shared memory of the group is damaged: the announcement of "},
                  [&] { c.barrier(kPatience); });
    }
  });
}

TEST(a_digest_that_is_not_of_its_call_is_an_error) {
  with_group(2, "auto", [](Communicator& c) {
    c.barrier(kPatience);
    if (c.rank() == 1) {
      shm::Announcement& announcement = c.group().segment().announcement(1, 2);
      announcement.call = make_call(Collective::kBarrier, 0, DType::kUInt8);
      announcement.digest = digest_of(announcement.call) + 1;
      announcement.sequence.store(2);
    } else {
      check_error(ErrorKind::kSystem, {"barrier()", "is damaged: the announcement of "},
                  [&] { c.barrier(kPatience); });
    }
  });
}

TEST(damaged_counts_of_an_all_to_all_are_an_error) {
  with_group(2, "auto", [](Communicator& c) {
    c.barrier(kPatience);
    if (c.rank() == 1) {
      shm::Announcement& announcement = c.group().segment().announcement(1, 2);
      announcement.call = make_call(Collective::kAllToAll, 0, DType::kFloat32);
      announcement.call.algorithm = id_of(*find_algorithm(Collective::kAllToAll, "direct"));
      announcement.call.eager = 1;
      announcement.digest = digest_of(announcement.call);
      announcement.payload_at = shm::kBehind;
      // What it sends rank 0 is what rank 0 expects; where that lies is out of bounds.
      const std::uint64_t counts[] = {1, std::uint64_t{1} << 61, 1, std::uint64_t{1} << 61};
      std::memcpy(announcement.payload(), counts, sizeof(counts));
      announcement.sequence.store(2);
    } else {
      std::vector<float> in(2), out(2);
      const Input inputs[] = {{in.data(), 1}, {in.data() + 1, 1}};
      const Output outputs[] = {{out.data(), 1}, {out.data() + 1, 1}};
      check_error(ErrorKind::kSystem, {"all_to_all", "is damaged", "rank 1 holds counts"},
                  [&] { c.all_to_all(inputs, outputs, DType::kFloat32, kPatience); });
    }
  });
}

TEST(a_damaged_record_of_a_failure_can_be_read) {
  with_group(2, "auto", [](Communicator& c) {
    c.barrier(kPatience);
    if (c.rank() == 1) return;
    shm::GroupHeader& header = c.group().segment().header();
    header.kind = static_cast<ErrorKind>(1000);
    std::memset(static_cast<void*>(&header.text), 0x80, sizeof(header.text));
    header.failed.store(2);
    const std::string text = check::error_of(ErrorKind::kLibrary, [&] { c.barrier(kPatience); });
    CHECK_CONTAINS(text, "the group failed");
    CHECK_CONTAINS(text, "\xef\xbf\xbd\xef\xbf\xbd");  // U+FFFD
    CHECK_EQ(text, valid_utf8(text));
  });
}

// As the module view.h reads them: names without an end, of bytes that are no text.
TEST(damaged_names_can_be_read) {
  with_group(2, "auto", [](Communicator& c) {
    c.barrier(kPatience);
    if (c.rank() == 1) return;
    shm::Segment& segment = c.group().segment();
    const auto damage = [](auto& text, int byte) {
      std::memset(static_cast<void*>(&text), byte, sizeof(text));
    };
    damage(segment.header().group, 0xf0);
    damage(segment.header().engine, 0xff);
    damage(segment.state(0).host, 0x1b);
    damage(segment.state(1).mail.message, 0xed);
    segment.state(1).mail.since.store(1);
    segment.header().failed.store(2);
    damage(segment.header().text, 0xe2);
    segment.header().text.assign("\xe2\x82");

    const shm::GroupView seen = seen_by_others(segment);
    const std::string replacement = "\xef\xbf\xbd";
    CHECK_EQ(seen.name, repeated(replacement, sizeof(segment.header().group)));
    CHECK_EQ(seen.ranks[0].host, std::string(sizeof(segment.state(0).host), '?'));
    CHECK_EQ(seen.ranks[1].doing, repeated(replacement, sizeof(segment.state(1).mail.message)));
    CHECK_EQ(seen.failure, replacement);
    CHECK_EQ(c.group().host_names(), std::vector<std::string>{seen.ranks[0].host});
  });
}

// An emoji of four bytes, and a letter of two, behind `offset` letters of one.
std::string colourful(std::size_t offset, std::size_t nbytes) {
  std::string text(offset, 'x');
  while (text.size() < nbytes) text += "\xf0\x9f\x8f\x96\xc3\xa9";
  return text;
}

TEST(a_failure_that_is_too_long_is_cut_between_characters) {
  for (std::size_t offset = 0; offset < 6; ++offset) {
    with_group(2, "auto", [&](Communicator& c) {
      c.barrier(kPatience);
      const std::string text = colourful(offset, 3000);
      if (c.rank() == 0) {
        c.group().fail(ErrorKind::kSystem, text);
      } else {
        const std::string raised = check::error_of(ErrorKind::kSystem, [&] {
          for (;;) c.barrier(kPatience);
        });
        CHECK_EQ(raised, valid_utf8(raised));
        CHECK_CONTAINS(raised, cut_at_character(text, sizeof(shm::FailureText) - 1));
      }
    });
  }
}

TEST(a_refusal_that_is_too_long_is_cut_between_characters) {
  for (std::size_t offset = 0; offset < 6; ++offset) {
    with_group(2, "auto", [&](Communicator& c) {
      const shm::Geometry& geometry = c.group().geometry();
      const std::string text = colourful(offset, 100'000);
      const auto check_raised = [&](std::size_t nbytes, const std::function<void()>& call) {
        const std::string raised = check::error_of(ErrorKind::kMismatch, call);
        CHECK_EQ(raised, valid_utf8(raised));
        CHECK_CONTAINS(raised, ": " + std::string(cut_at_character(text, nbytes)) + ". ");
      };
      if (c.rank() == 0) {
        c.refuse(text, kPatience);
        c.refuse_message(Message::Kind::kSend, 1, 1, text, kPatience);
        c.refuse_message(Message::Kind::kRecv, 1, 1, text, kPatience);
      } else {
        check_raised(geometry.eager_nbytes, [&] { c.barrier(kPatience); });
        check_raised(geometry.mail_slot_nbytes, [&] { receive(c, 0, 100); });
        // So much that it is not done before it is refused.
        check_raised(sizeof(shm::Reason) - 1, [&] { send(c, 0, 8 * geometry.mail_slot_nbytes); });
      }
      c.barrier(kPatience);
    });
  }
}

TEST(a_chain_of_waiting_ranks_that_leads_nowhere_ends) {
  with_group(2, "auto", [](Communicator& c) {
    if (c.rank() == 1) return std::this_thread::sleep_for(500ms);
    c.group().segment().state(1).wait.peer.store(1 << 28);
    check_error(ErrorKind::kTimeout, {"waiting for rank 1"}, [&] { c.barrier(100ms); });
  });
}

// Memory that ranks read, through one rank's mapping.
struct Target {
  std::byte* data;
  std::size_t nbytes;
};

template <typename T>
Target target(T& object) {
  return {reinterpret_cast<std::byte*>(&object), sizeof(object)};
}

std::vector<Target> targets_of(Communicator& c, int kind) {
  shm::Segment& segment = c.group().segment();
  std::vector<Target> targets;
  for (int r = 0; r < c.world_size(); ++r) {
    if (kind == 0) targets.push_back(target(segment.state(r)));
    for (int s = 0; s < 2 && kind == 1; ++s) {
      targets.push_back(target(segment.announcement(r, s)));
      targets.push_back({segment.announcement(r, s).payload(), 128});
    }
    if (kind == 1) targets.push_back({segment.payloads(r), 64 << 10});
    for (int l = 0; l < shm::kLanes && kind == 2; ++l) {
      targets.push_back(target(segment.progress(r, l)));
      targets.push_back({segment.outbox(r, l), 4096});
    }
    for (int to = 0; to < c.world_size() && kind == 3; ++to) {
      if (to == r) continue;
      targets.push_back(target(segment.mail_edge(r, to)));
      for (int i = 0; i < shm::kMailSlots; ++i) {
        targets.push_back(target(segment.mail_slot(r, to, i)));
        targets.push_back({segment.mail_slot(r, to, i).data(), 256});
      }
    }
  }
  if (kind == 4) targets.push_back(target(segment.header()));
  return targets;
}
constexpr int kKinds = 6;  // the last: all of them

void scribble(const std::vector<Target>& targets, Random& random) {
  const Target& chosen = targets[random() % targets.size()];
  const std::size_t size = std::min<std::size_t>(std::size_t{1} << random() % 7, chosen.nbytes);
  const std::size_t at = random() % (chosen.nbytes - size + 1) / size * size;
  std::uint64_t values[] = {random(), random() % 8, ~0ull, 0, std::uint64_t{1} << random() % 64};
  const std::uint64_t value = values[random() % 5];
  for (std::size_t i = 0; i < size; i += sizeof(value)) {
    std::memcpy(chosen.data + at + i, &value, std::min(sizeof(value), size - i));
  }
}

// One collective or a message; what it does follows from `random`, which is the same on all ranks.
void do_something(Communicator& c, Random random, Communicator::Timeout timeout) {
  const int n = c.world_size();
  const std::size_t count = random() % 2 ? random() % 200 : 40'000 + random() % 1000;
  std::vector<std::int32_t> in(n * count, 1), out(n * count);
  const Reduce sum{DType::kInt32, random() % 2 ? ReduceOp::kSum : ReduceOp::kAvg};
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  for (int r = 0; r < n; ++r) {
    inputs.push_back({in.data() + r * count, count});
    outputs.push_back({out.data() + r * count, count});
  }
  switch (random() % 6) {
    case 0:
      return c.all_reduce(in.data(), out.data(), n * count, sum, timeout);
    case 1:
      return c.all_gather(in.data(), outputs, DType::kInt32, timeout);
    case 2:
      return c.all_to_all(inputs, outputs, DType::kInt32, timeout);
    case 3:
      return c.broadcast(in.data(), count, DType::kInt32, 0, timeout);
    case 4:
      return c.monitored_barrier(random() % 2, timeout);
    default:
      break;
  }
  const bool any = random() % 4 == 0;
  std::exception_ptr errors[2];
  in.resize(count);
  out.resize(count);
  const int next = (c.rank() + 1) % n, prev = (c.rank() + n - 1) % n;
  const auto sent = post(c, Message::Kind::kSend, next, 1, in, timeout, errors[0]);
  std::exception_ptr refused;
  try {
    const auto received =
        post(c, Message::Kind::kRecv, any ? shm::kAnySource : prev, 1, out, timeout, errors[1]);
    wait(c, received, errors[1]);
  } catch (...) {
    refused = std::current_exception();
  }
  wait(c, sent, errors[0]);
  if (refused) std::rethrow_exception(refused);
}

// Whether any rank has raised for damage.
bool trial(unsigned seed) {
  const int n = 2 + static_cast<int>(seed % 3);
  const int kind = static_cast<int>(seed / 3 % kKinds);
  auto group = ranks::make_group(n, seed % 2 ? "ring" : "auto");
  std::vector<Target> targets;
  for (int k = 0; k < kKinds - 1; ++k) {
    if (kind < kKinds - 1 && k != kind) continue;
    const std::vector<Target> more = targets_of(*group[0], k);
    targets.insert(targets.end(), more.begin(), more.end());
  }
  std::atomic<bool> stop{false}, is_named{false};
  std::thread scribbler([&] {
    Random random(seed);
    const auto pause = std::chrono::microseconds(10 << random() % 9);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    while (!stop) {
      scribble(targets, random);
      std::this_thread::sleep_for(pause);
    }
  });
  auto ended = std::async(std::launch::async, [&] {
    ranks::on_threads(n, [&](int r) {
      int errors = 0;
      for (unsigned i = 0; i < 40 && errors < 3; ++i) {
        try {
          do_something(*group[r], Random(1000 * seed + i), 100ms);
        } catch (const Error& error) {
          ++errors;
          if (check::contains(error.what(), "is damaged")) is_named = true;
        }
      }
      group[r]->close("the end");
    });
  });
  if (ended.wait_for(kPatience) != std::future_status::ready) {
    std::cout << "trial " << seed << " hangs" << std::endl;
    std::abort();
  }
  stop = true;
  scribbler.join();
  ended.get();  // throws what is no Error
  return is_named;
}

TEST(random_damage_is_an_error_in_time) {
  const auto end =
      Clock::now() + std::chrono::seconds(check::from_environment("RINGCOMM_DAMAGE_SECONDS", 5));
  unsigned seed = 0, num_named = 0;
  do {
    num_named += trial(seed++);
  } while (Clock::now() < end || seed < kKinds * 3);
  std::cout << seed << " trials, " << num_named << " of them called damage by its name"
            << std::endl;
  CHECK(num_named > 0);
}

}  // namespace
