// send and recv: matching by tag and order, and progress while no thread waits.
#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "errors.h"
#include "messages.h"

namespace {

using namespace messages;
using check::check_error;

struct Expected {
  int tag;
  std::size_t count;
  int first;
};

// What rank `from` sends to rank `to`. Both ranks compute it.
std::vector<Expected> messages_between(int from, int to, int number, int world_size) {
  std::mt19937 random(100 * from + to);
  const std::size_t slot = slot_count(world_size);
  std::vector<Expected> all;
  for (int i = 0; i < number; ++i) {
    const std::size_t sizes[] = {0,    1,        random() % 100,       slot - 1,
                                 slot, slot + 1, random() % (6 * slot)};
    all.push_back(
        {static_cast<int>(random() % 4), sizes[random() % 7], static_cast<int>(random() % 1000)});
  }
  return all;
}

// All ranks send everything before any rank receives; the receiver asks for the tags in an order of
// its own, and each tag's messages must come in the order they were sent.
TEST(all_pairs_send_first_and_receive_by_tag) {
  for (const int n : {2, 5}) {
    everywhere(n, [n](Communicator& c) {
      std::vector<Pending> sent;
      for (int peer = 0; peer < n; ++peer) {
        if (peer == c.rank()) continue;
        for (const Expected& l : messages_between(c.rank(), peer, 25, n)) {
          sent.push_back(send(c, peer, l.tag, numbers(l.count, l.first)));
        }
      }
      std::vector<std::pair<Pending, Expected>> received;
      for (int peer = n - 1; peer >= 0; --peer) {
        if (peer == c.rank()) continue;
        std::vector<Expected> expected = messages_between(peer, c.rank(), 25, n);
        std::stable_sort(
            expected.begin(), expected.end(),
            [](const Expected& a, const Expected& b) { return a.tag * 5 % 4 > b.tag * 5 % 4; });
        for (const Expected& l : expected) received.push_back({recv(c, peer, l.tag, l.count), l});
      }
      for (const auto& [operation, message] : received) {
        wait(c, operation);
        CHECK(operation->data == numbers(message.count, message.first));
      }
      for (const Pending& operation : sent) wait(c, operation);
      check_works(c);
    });
  }
}

TEST(any_source_takes_what_comes_and_says_from_whom) {
  constexpr int n = 4, kEach = 20;
  everywhere(n, [](Communicator& c) {
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
  everywhere(2, [](Communicator& c) {
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

// What has begun to be put aside is taken to its end, though the receive that did so has ended.
TEST(an_abandoned_receive_does_not_hold_up_its_sender) {
  everywhere(2, [](Communicator& c) {
    const std::size_t large = 30 * slot_count(2);
    if (c.rank() == 0) {
      c.barrier(kPatience);
      wait(c, send(c, 1, 9, numbers(large, 1)));
      c.barrier(kPatience);
    } else {
      const Pending other = recv(c, 0, 5, 1, 200ms);
      c.barrier(kPatience);
      check_error(ErrorKind::kTimeout, {"tag=5"}, [&] { wait_idly(other); });
      c.barrier(kPatience);
      const Pending late = recv(c, 0, 9, large);
      wait(c, late);
      CHECK(late->data == numbers(large, 1));
    }
    check_works(c);
  });
}

// Both ranks post only from completions, and no thread waits.
TEST(completions_post_the_next_message) {
  constexpr int kRounds = 100;
  everywhere(2, [](Communicator& c) {
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
    everywhere(2, [driven](Communicator& c) {
      if (c.rank() == 1) {
        wait(c, send(c, 0, 1, {1}));
        std::this_thread::sleep_for(50ms);
        wait(c, send(c, 0, 2, {2}));
        return c.barrier(kPatience);
      }
      const Pending second = recv(c, 1, 2, 1);
      std::atomic<bool> saw_second{false};
      const Pending first = prepare(Message::Kind::kRecv, 1, 1, {-1});
      first->then = [&saw_second, done = second->completed] {
        saw_second = done.wait_for(kPatience) == std::future_status::ready;
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

// Many messages wait for each other in a row, and any rank may drive or complete any of them first.
TEST(many_completions_may_wait_for_each_other) {
  constexpr int kMessages = 12;
  everywhere(2, [](Communicator& c) {
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
  everywhere(3, [](Communicator& c) {
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
