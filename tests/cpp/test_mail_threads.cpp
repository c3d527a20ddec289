// send and recv: matching by tag and order, progress without anybody waiting, and what can go
// wrong.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "errors.h"
#include "memory_store.h"
#include "one_mapping.h"

namespace {

using namespace ringcomm;
using namespace std::chrono_literals;
using check::check_error;
using ranks::kPatience;
using ranks::with_group;
using shm::kAnySource;
using shm::Message;
using Timeout = Communicator::Timeout;

// A posted message with its buffer and, once it is done, its error.
struct Operation {
  std::vector<std::int32_t> data;
  std::shared_ptr<Message> message = std::make_shared<Message>();
  std::promise<void> done;
  std::future<void> completed = done.get_future();
  std::atomic<int> completions{0};
  std::function<void()> then = [] {};
};
using Pending = std::shared_ptr<Operation>;

Pending prepare(Message::Kind kind, int peer, int tag, std::vector<std::int32_t> data,
                Timeout timeout = kPatience) {
  auto operation = std::make_shared<Operation>();
  operation->data = std::move(data);
  Message& m = *operation->message;
  m.kind = kind;
  m.peer = peer;
  m.tag = tag;
  m.dtype = DType::kInt32;
  m.data = reinterpret_cast<std::byte*>(operation->data.data());
  m.count = operation->data.size();
  m.deadline = shm::Deadline::in(timeout);
  m.on_done = [operation](std::exception_ptr error) {
    ++operation->completions;
    error ? operation->done.set_exception(error) : operation->done.set_value();
    std::exchange(operation->then, {})();
  };
  return operation;
}

Pending send(Communicator& c, int peer, int tag, std::vector<std::int32_t> data,
             Timeout timeout = kPatience) {
  auto operation = prepare(Message::Kind::kSend, peer, tag, std::move(data), timeout);
  c.post(operation->message);
  return operation;
}

Pending recv(Communicator& c, int peer, int tag, std::size_t count, Timeout timeout = kPatience) {
  auto operation =
      prepare(Message::Kind::kRecv, peer, tag, std::vector<std::int32_t>(count, -1), timeout);
  c.post(operation->message);
  return operation;
}

// Drives the operation to its end, and throws its error.
void wait(Communicator& c, const Pending& operation) {
  CHECK(c.wait(*operation->message, 2 * kPatience));
  CHECK_EQ(operation->completions.load(), 1);
  operation->completed.get();
}

// Leaves it to the background.
void wait_idly(const Pending& operation) {
  if (operation->completed.wait_for(2 * kPatience) != std::future_status::ready) {
    throw std::runtime_error("an operation made no progress in the background");
  }
  operation->completed.get();
}

std::vector<std::int32_t> numbers(std::size_t count, int first) {
  std::vector<std::int32_t> data(count);
  for (std::size_t i = 0; i < count; ++i) data[i] = first + static_cast<int>(i);
  return data;
}

std::size_t slot_count(int world_size) {
  return shm::Geometry(world_size).mail_slot_nbytes / sizeof(std::int32_t);
}

void check_works(Communicator& c) {
  const int next = (c.rank() + 1) % c.world_size();
  const int prev = (c.rank() + c.world_size() - 1) % c.world_size();
  const Pending sent = send(c, next, 99, numbers(5000, c.rank()));
  const Pending received = recv(c, prev, 99, 5000);
  wait(c, sent);
  wait(c, received);
  CHECK(received->data == numbers(5000, prev));
  std::vector<float> ones(20'000, 1.0f);
  c.all_reduce(ones.data(), ones.data(), ones.size(), {DType::kFloat32, ReduceOp::kSum}, kPatience);
  CHECK(ones == std::vector<float>(ones.size(), static_cast<float>(c.world_size())));
}

struct Letter {
  int tag;
  std::size_t count;
  int first;
};

// What rank `from` sends rank `to`: known to both.
std::vector<Letter> letters(int from, int to, int number, int world_size) {
  std::mt19937 random(100 * from + to);
  const std::size_t slot = slot_count(world_size);
  std::vector<Letter> all;
  for (int i = 0; i < number; ++i) {
    const std::size_t sizes[] = {0,    1,        random() % 100,       slot - 1,
                                 slot, slot + 1, random() % (6 * slot)};
    all.push_back(
        {static_cast<int>(random() % 4), sizes[random() % 7], static_cast<int>(random() % 1000)});
  }
  return all;
}

// Everybody sends everything before anybody receives; the receiver asks for the tags in an order of
// its own, and each tag's messages must come in the order they were sent.
TEST(all_pairs_send_first_and_receive_by_tag) {
  for (const int n : {2, 5}) {
    with_group(n, Algorithm::kAuto, [n](Communicator& c) {
      std::vector<Pending> sent;
      for (int peer = 0; peer < n; ++peer) {
        if (peer == c.rank()) continue;
        for (const Letter& l : letters(c.rank(), peer, 25, n)) {
          sent.push_back(send(c, peer, l.tag, numbers(l.count, l.first)));
        }
      }
      std::vector<std::pair<Pending, Letter>> received;
      for (int peer = n - 1; peer >= 0; --peer) {
        if (peer == c.rank()) continue;
        std::vector<Letter> expected = letters(peer, c.rank(), 25, n);
        std::stable_sort(expected.begin(), expected.end(), [](const Letter& a, const Letter& b) {
          return a.tag * 5 % 4 > b.tag * 5 % 4;
        });
        for (const Letter& l : expected) received.push_back({recv(c, peer, l.tag, l.count), l});
      }
      for (const auto& [operation, letter] : received) {
        wait(c, operation);
        CHECK(operation->data == numbers(letter.count, letter.first));
      }
      for (const Pending& operation : sent) wait(c, operation);
      check_works(c);
    });
  }
}

TEST(any_source_takes_what_comes_and_says_from_whom) {
  constexpr int n = 4, kEach = 20;
  with_group(n, Algorithm::kAuto, [](Communicator& c) {
    if (c.rank() != 0) {
      std::vector<Pending> sent;
      for (int i = 0; i < kEach; ++i) sent.push_back(send(c, 0, 7, {c.rank(), i}));
      for (const Pending& operation : sent) wait(c, operation);
      return c.barrier(kPatience);
    }
    std::vector<int> next(n, 0);
    for (int i = 0; i < kEach * (n - 1); ++i) {
      const Pending operation = recv(c, kAnySource, 7, 2);
      wait(c, operation);
      const int source = operation->message->peer;
      CHECK_EQ(operation->data[0], source);
      CHECK_EQ(operation->data[1], next[source]++);
    }
    c.barrier(kPatience);
  });
}

TEST(early_messages_wait_for_their_receive) {
  with_group(2, Algorithm::kAuto, [](Communicator& c) {
    constexpr int kTags = 40;
    auto count_of = [](int tag) {
      return tag % 3 == 0 ? 3 * slot_count(2) + tag : std::size_t(tag);
    };
    std::vector<Pending> operations;
    if (c.rank() == 0) {
      for (int t = 0; t < kTags; ++t) operations.push_back(send(c, 1, t, numbers(count_of(t), t)));
    } else {
      for (int t = kTags - 1; t >= 0; --t)
        operations.push_back(recv(c, t % 2 ? 0 : kAnySource, t, count_of(t)));
    }
    for (const Pending& operation : operations) {
      wait(c, operation);
      const Message& m = *operation->message;
      CHECK(operation->data == numbers(count_of(m.tag), m.tag));
      CHECK_EQ(m.peer, 1 - c.rank());
    }
  });
}

TEST(a_receive_of_another_size_or_type_drops_the_message_and_goes_on) {
  with_group(2, Algorithm::kAuto, [](Communicator& c) {
    const std::size_t large = 3 * slot_count(2);
    if (c.rank() == 0) {
      const std::vector<Pending> sent{send(c, 1, 1, numbers(10, 0)),
                                      send(c, 1, 1, numbers(large, 0)),
                                      send(c, 1, 1, numbers(10, 0)), send(c, 1, 1, numbers(3, 5))};
      for (const Pending& operation : sent) wait(c, operation);
    } else {
      for (const auto& [count, sent] : {std::pair<std::size_t, std::size_t>{11, 10}, {4, large}}) {
        check_error(
            ErrorKind::kMismatch,
            {"recv(count=" + std::to_string(count), "rank 0 sent count=" + std::to_string(sent)},
            [&, count = count] { wait(c, recv(c, 0, 1, count)); });
      }
      auto other_type = prepare(Message::Kind::kRecv, 0, 1, std::vector<std::int32_t>(10));
      other_type->message->dtype = DType::kFloat32;
      c.post(other_type->message);
      check_error(ErrorKind::kMismatch, {"dtype=float32", "dtype=int32"},
                  [&] { wait(c, other_type); });
      const Pending last = recv(c, 0, 1, 3);
      wait(c, last);
      CHECK(last->data == numbers(3, 5));
    }
    check_works(c);
  });
}

TEST(what_times_out_before_it_began_leaves_the_group_usable) {
  with_group(2, Algorithm::kAuto, [](Communicator& c) {
    const int peer = 1 - c.rank();
    const Pending unmatched = recv(c, peer, 5, 10, 100ms);
    check_error(ErrorKind::kTimeout,
                {"rank " + std::to_string(c.rank()) + " in recv(count=10, dtype=int32, tag=5)",
                 " Timed out after ", "waiting for rank " + std::to_string(peer)},
                [&] { wait(c, unmatched); });
    const Pending in_background = recv(c, kAnySource, 6, 10, 100ms);
    check_error(ErrorKind::kTimeout, {"from any rank", " Timed out after "},
                [&] { wait_idly(in_background); });
    c.barrier(kPatience);

    // The slots are full with what nobody receives; a second message behind it has not begun.
    if (c.rank() == 0) {
      const Pending blocked = send(c, 1, 1, numbers(6 * slot_count(2), 0));
      const Pending behind = send(c, 1, 2, numbers(10, 0), 100ms);
      check_error(ErrorKind::kTimeout, {"send(count=10", " Timed out after "},
                  [&] { wait(c, behind); });
      c.barrier(kPatience);
      wait(c, blocked);
    } else {
      c.barrier(kPatience);
      wait(c, recv(c, 0, 1, 6 * slot_count(2)));
    }
    check_works(c);
  });
}

TEST(half_a_message_that_times_out_breaks_the_group) {
  with_group(2, Algorithm::kAuto, [](Communicator& c) {
    if (c.rank() == 0) {
      check_error(ErrorKind::kTimeout, {"send(count=", " Timed out after ", "waiting for rank 1"},
                  [&] { wait(c, send(c, 1, 1, numbers(6 * slot_count(2), 0), 100ms)); });
    }
    check_error(ErrorKind::kTimeout, {"send(count=", "failed on rank 0"},
                [&] { c.barrier(kPatience); });
    check_error(ErrorKind::kTimeout, {"failed on rank 0"},
                [&] { wait(c, recv(c, 1 - c.rank(), 1, 1)); });
  });
}

TEST(close_ends_what_is_pending_once) {
  with_group(3, Algorithm::kAuto, [](Communicator& c) {
    const int peer = (c.rank() + 1) % 3;
    std::vector<Pending> operations;
    for (int tag = 0; tag < 5; ++tag) {
      operations.push_back(send(c, peer, tag, numbers(6 * slot_count(3), 0)));
      operations.push_back(recv(c, (c.rank() + 2) % 3, 100 + tag, 10));
      operations.push_back(recv(c, kAnySource, 200 + tag, 10));
    }
    c.barrier(kPatience);
    std::thread waiter([&] {
      check_error(ErrorKind::kClosed, {"the end", "tag=200"}, [&] { wait(c, operations[2]); });
    });
    c.close("the end");
    waiter.join();
    for (const Pending& operation : operations) {
      if (operation == operations[2]) continue;
      CHECK(operation->completed.wait_for(kPatience) == std::future_status::ready);
      CHECK_EQ(operation->completions.load(), 1);
    }
    check_error(ErrorKind::kClosed, {"send(count=1", "the end"}, [&] { send(c, peer, 0, {1}); });
  });
}

TEST(posts_that_race_with_close_end) {
  for (int i = 0; i < 50; ++i) {
    auto group = ranks::make_group(2);
    std::thread closer([&] { group[0]->close("the end"); });
    std::vector<Pending> posted;
    try {
      for (int k = 0; k < 1000; ++k) posted.push_back(recv(*group[0], 1, 0, 1));
    } catch (const Error&) {
    }
    closer.join();
    for (const Pending& operation : posted) {
      check_error(ErrorKind::kClosed, {"the end"}, [&] { wait_idly(operation); });
    }
  }
}

TEST(what_was_sent_before_the_sender_left_arrives) {
  for (int i = 0; i < 20; ++i) {
    with_group(2, Algorithm::kAuto, [](Communicator& c) {
      const std::size_t count = 20 * slot_count(2);
      if (c.rank() == 0) {
        wait(c, send(c, 1, 1, numbers(count, 3)));
        return c.close("done");
      }
      const Pending received = recv(c, 0, 1, count);
      wait_idly(received);
      CHECK(received->data == numbers(count, 3));
      check_error(ErrorKind::kPeerDied, {"recv(count=1", "it has closed the group"},
                  [&] { wait(c, recv(c, 0, 2, 1)); });
    });
  }
}

// Both ranks post only from completions, and nobody waits.
TEST(completions_post_the_next_message) {
  constexpr int kRounds = 100;
  with_group(2, Algorithm::kAuto, [](Communicator& c) {
    std::promise<void> all;
    std::vector<Pending> kept;
    std::function<void(int)> round = [&](int i) {
      if (i == kRounds) return all.set_value();
      const bool sends = i % 2 == c.rank();
      Pending operation = sends ? prepare(Message::Kind::kSend, 1 - c.rank(), 0, {i})
                                : prepare(Message::Kind::kRecv, 1 - c.rank(), 0, {-1});
      operation->then = [&, i, o = operation.get()] {
        CHECK_EQ(o->data[0], i);
        round(i + 1);
      };
      kept.push_back(operation);
      c.post(operation->message);
    };
    round(0);
    CHECK(all.get_future().wait_for(kPatience) == std::future_status::ready);
    c.barrier(kPatience);
  });
}

// A completion that sleeps until another message is done does not stop that message.
TEST(completions_may_wait_for_other_messages) {
  for (const bool driven : {false, true}) {
    with_group(2, Algorithm::kAuto, [driven](Communicator& c) {
      if (c.rank() == 1) {
        wait(c, send(c, 0, 1, {1}));
        std::this_thread::sleep_for(50ms);
        wait(c, send(c, 0, 2, {2}));
        return c.barrier(kPatience);
      }
      const Pending second = recv(c, 1, 2, 1);
      std::atomic<bool> saw_second{false};
      const Pending first = prepare(Message::Kind::kRecv, 1, 1, {-1});
      first->then = [&] {
        saw_second = second->completed.wait_for(kPatience) == std::future_status::ready;
      };
      c.post(first->message);
      if (driven) wait(c, first);
      c.barrier(kPatience);
      wait(c, second);
      while (!first->message->done) std::this_thread::sleep_for(1ms);
      CHECK(saw_second.load());
    });
  }
}

// Whoever drives and completes whatever first, of many that wait for each other in a row.
TEST(many_completions_may_wait_for_each_other) {
  constexpr int kMessages = 12;
  with_group(2, Algorithm::kAuto, [](Communicator& c) {
    if (c.rank() == 1) {
      c.barrier(kPatience);
      for (int i = 0; i < kMessages; ++i) wait(c, send(c, 0, i, {i}));
      return c.barrier(kPatience);
    }
    std::vector<std::shared_ptr<std::promise<void>>> ended;
    std::vector<std::shared_future<void>> has_ended;
    for (int i = 0; i <= kMessages; ++i) {
      ended.push_back(std::make_shared<std::promise<void>>());
      has_ended.push_back(ended.back()->get_future().share());
    }
    ended[kMessages]->set_value();
    for (int i = 0; i < kMessages; ++i) {
      const Pending operation = prepare(Message::Kind::kRecv, 1, i, {-1});
      operation->then = [next = has_ended[i + 1], own = ended[i]] {
        CHECK(next.wait_for(kPatience) == std::future_status::ready);
        own->set_value();
      };
      c.post(operation->message);
    }
    c.barrier(kPatience);
    CHECK(has_ended[0].wait_for(kPatience) == std::future_status::ready);
    c.barrier(kPatience);
  });
}

TEST(messages_and_collectives_at_once) {
  with_group(3, Algorithm::kAuto, [](Communicator& c) {
    std::thread messages([&] {
      const int next = (c.rank() + 1) % 3, prev = (c.rank() + 2) % 3;
      for (int i = 0; i < 60; ++i) {
        const std::size_t count = i % 10 == 0 ? 5 * slot_count(3) : 100;
        const Pending sent = send(c, next, i, numbers(count, i));
        const Pending received = recv(c, prev, i, count);
        wait(c, received);
        CHECK(received->data == numbers(count, i));
        i % 2 ? wait(c, sent) : wait_idly(sent);
      }
    });
    std::vector<float> data(20'000);
    for (int i = 0; i < 60; ++i) {
      std::fill(data.begin(), data.end(), 1.0f);
      c.all_reduce(data.data(), data.data(), i % 2 ? data.size() : 10,
                   {DType::kFloat32, ReduceOp::kSum}, kPatience);
      CHECK_EQ(data[9], 3.0f);
    }
    messages.join();
  });
}

// A communicator may end on the thread that completes its last message.
TEST(a_message_may_be_the_last_to_hold_its_communicator) {
  for (int i = 0; i < 20; ++i) {
    auto group = ranks::make_group(2);
    auto gone = std::make_shared<std::promise<void>>();
    {
      std::shared_ptr<Communicator> held(group[0].release(), [gone](Communicator* communicator) {
        delete communicator;
        gone->set_value();
      });
      auto operation = prepare(Message::Kind::kRecv, 1, 0, {-1});
      operation->then = [held] { std::this_thread::sleep_for(1ms); };
      held->post(operation->message);
    }
    wait(*group[1], send(*group[1], 0, 0, {1}));
    CHECK(gone->get_future().wait_for(kPatience) == std::future_status::ready);
  }
}

}  // namespace
