// send and recv: what can go wrong, and what it leaves usable.
#include <barrier>
#include <thread>
#include <vector>

#include "errors.h"
#include "messages.h"

namespace {

using namespace messages;
using check::check_error;

TEST(a_receive_of_another_size_or_type_drops_the_message_and_goes_on) {
  everywhere(2, [](Communicator& c) {
    if (c.rank() == 0) {
      for (const Pending& operation :
           {send(c, 1, 1, numbers(10, 0)), send(c, 1, 1, numbers(10, 0)),
            send(c, 1, 1, numbers(10, 0)), send(c, 1, 1, numbers(3, 5))}) {
        wait(c, operation);
      }
    } else {
      check_error(ErrorKind::kMismatch, {"recv(count=11", "rank 0 sent count=10"},
                  [&] { wait(c, recv(c, 0, 1, 11)); });
      auto other_type = prepare(Message::Kind::kRecv, 0, 1, std::vector<std::int32_t>(10));
      other_type->message->dtype = DType::kFloat32;
      c.post(other_type->message);
      check_error(ErrorKind::kMismatch, {"dtype=float32", "dtype=int32"},
                  [&] { wait(c, other_type); });
      auto users_type = prepare(Message::Kind::kRecv, 0, 1, std::vector<std::int32_t>(10));
      users_type->message->users = {.name = {"pair"}, .per_element = 2};
      c.post(users_type->message);
      check_error(ErrorKind::kMismatch, {"count=5, dtype=pair", "sent count=10, dtype=int32"},
                  [&] { wait(c, users_type); });
      const Pending last = recv(c, 0, 1, 3);
      wait(c, last);
      CHECK(last->data == numbers(3, 5));
    }
    check_works(c);
  });
}

// The message has more slots than there are, so that the sender cannot be done before the receiver
// has looked.
TEST(both_ends_of_a_large_message_of_another_size_raise_and_go_on) {
  for (const std::size_t wanted : {std::size_t{4}, 9 * slot_count(2)}) {
    for (const char* when : {"posted before", "posted after", "put aside"}) {
      everywhere(2, [&](Communicator& c) {
        const bool aside = std::string(when) == "put aside";
        const std::size_t large = 8 * slot_count(2);
        const std::string sent = "count=" + std::to_string(large) + ", dtype=int32";
        const std::string received = "count=" + std::to_string(wanted) + ", dtype=int32";
        if (c.rank() == 0) {
          if (std::string(when) == "posted before") c.barrier(kPatience);
          const Pending refused = send(c, 1, 1, numbers(large, 0));
          const Pending next = send(c, 1, 2, numbers(large, 7));
          if (std::string(when) == "posted after") c.barrier(kPatience);
          if (!aside) {
            check_error(ErrorKind::kMismatch,
                        {"rank 0 in send(" + sent, "to rank 1", "rank 1 receives " + received},
                        [&] { wait_idly(refused); });
          } else {
            try {
              wait_idly(refused);  // it may have been put aside whole
            } catch (const Error& error) {
              CHECK(error.kind() == ErrorKind::kMismatch);
            }
          }
          wait(c, next);
        } else {
          Pending first;
          if (aside) first = recv(c, 0, 3, 1, 1ms);
          if (std::string(when) == "posted after") c.barrier(kPatience);
          const Pending refused = recv(c, 0, 1, wanted);
          if (std::string(when) == "posted before") c.barrier(kPatience);
          check_error(ErrorKind::kMismatch, {"rank 1 in recv(" + received, "rank 0 sent " + sent},
                      [&] { wait_idly(refused); });
          const Pending next = recv(c, 0, 2, large);
          wait(c, next);
          CHECK(next->data == numbers(large, 7));
        }
        check_works(c);
      });
    }
  }
}

TEST(a_send_that_is_refused_fails_its_receive) {
  for (const char* when : {"posted before", "posted after", "put aside", "from any"}) {
    everywhere(2, [&](Communicator& c) {
      const std::string how = when;
      if (c.rank() == 0) {
        if (how == "posted before") c.barrier(kPatience);
        c.refuse_message(Message::Kind::kSend, 1, 1, "this tensor is bad", kPatience);
        wait(c, send(c, 1, 1, numbers(3, 5)));
        if (how != "posted before") c.barrier(kPatience);
      } else {
        Pending other;
        if (how == "put aside") other = recv(c, 0, 9, 1, 1ms);
        if (how != "posted before") c.barrier(kPatience);
        const Pending refused = recv(c, how == "from any" ? kAnySource : 0, 1, 18);
        if (how == "posted before") c.barrier(kPatience);
        check_error(ErrorKind::kMismatch,
                    {"rank 1 in recv(count=18, dtype=int32, tag=1) from ",
                     "rank 0's arguments were refused: this tensor is bad. Nothing was sent"},
                    [&] { wait_idly(refused); });
        const Pending next = recv(c, 0, 1, 3);
        wait(c, next);
        CHECK(next->data == numbers(3, 5));
      }
      check_works(c);
    });
  }
}

TEST(a_receive_that_is_refused_fails_a_send_that_is_not_done) {
  for (const int source : {0, kAnySource}) {
    for (const bool is_posted_before : {true, false}) {
      everywhere(2, [&](Communicator& c) {
        const std::size_t large = 8 * slot_count(2);
        const std::string reason(300, 'r');
        if (c.rank() == 0) {
          if (is_posted_before) c.barrier(kPatience);
          const Pending refused = send(c, 1, 1, numbers(large, 0));
          if (!is_posted_before) c.barrier(kPatience);
          check_error(ErrorKind::kMismatch,
                      {"rank 0 in send(count=" + std::to_string(large), "to rank 1",
                       "rank 1's arguments were refused: " + reason.substr(0, 255) +
                           ". The message was dropped"},
                      [&] { wait_idly(refused); });
          wait(c, send(c, 1, 1, numbers(4, 2)));  // in the box, whichever receive takes it
          wait(c, send(c, 1, 1, numbers(5, 3)));
        } else {
          if (!is_posted_before) c.barrier(kPatience);
          c.refuse_message(Message::Kind::kRecv, source, 1, reason, kPatience);
          c.refuse_message(Message::Kind::kRecv, source, 1, reason, kPatience);
          if (is_posted_before) c.barrier(kPatience);
          const Pending next = recv(c, 0, 1, 5);
          wait(c, next);
          CHECK(next->data == numbers(5, 3));
        }
        check_works(c);
      });
    }
  }
}

TEST(refusals_match_each_other_and_are_no_longer_than_a_slot) {
  everywhere(2, [](Communicator& c) {
    const std::string reason(2 * shm::Geometry(2).mail_slot_nbytes, 'r');
    const Message::Kind kind = c.rank() == 0 ? Message::Kind::kSend : Message::Kind::kRecv;
    for (int i = 0; i < 9; ++i) c.refuse_message(kind, 1 - c.rank(), 1, reason, kPatience);
    if (c.rank() == 0) {
      c.refuse_message(kind, 1, 1, reason, kPatience);
    } else {
      check_error(ErrorKind::kMismatch, {"rank 0's arguments were refused: rrr"},
                  [&] { wait(c, recv(c, 0, 1, 1)); });
    }
    check_works(c);
  });
}

// As if this rank's process had been killed.
void pretend_to_be_dead(Communicator& c) {
  c.group().segment().state(c.rank()).liveness.ended.store(1);
}

TEST(any_source_raises_when_a_rank_has_died_but_takes_what_was_sent) {
  std::barrier together(3);
  everywhere(3, [&](Communicator& c) {
    if (c.rank() == 1) {
      wait(c, send(c, 0, 7, {1, 2}));
      pretend_to_be_dead(c);
    }
    together.arrive_and_wait();
    if (c.rank() == 0) {
      const Pending sent_before = recv(c, kAnySource, 7, 2);
      wait_idly(sent_before);
      CHECK(sent_before->data == std::vector<std::int32_t>({1, 2}));
      check_error(
          ErrorKind::kPeerDied,
          {"rank 0 in recv(count=2, dtype=int32, tag=7) from any rank", "rank 1", "has ended"},
          [&] { wait_idly(recv(c, kAnySource, 7, 2)); });
    }
    together.arrive_and_wait();
  });
}

TEST(any_source_waits_for_the_ranks_left_and_raises_when_there_are_none) {
  everywhere(3, [](Communicator& c) {
    c.barrier(kPatience);
    if (c.rank() == 1) return c.close("done");
    if (c.rank() == 2) {
      std::this_thread::sleep_for(200ms);
      wait(c, send(c, 0, 7, {5}));
      return c.close("done");
    }
    const Pending received = recv(c, kAnySource, 7, 1);
    wait(c, received);
    CHECK_EQ(received->message->peer, 2);
    check_error(ErrorKind::kPeerDied, {"all other ranks have closed the group"},
                [&] { wait(c, recv(c, kAnySource, 7, 1)); });
  });
}

TEST(what_times_out_before_it_began_leaves_the_group_usable) {
  everywhere(2, [](Communicator& c) {
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

    if (c.rank() == 0) {
      for (int tag = 10; tag < 14; ++tag) wait(c, send(c, 1, tag, numbers(3, 0)));
    }
    c.barrier(kPatience);
    if (c.rank() == 1) {
      const Pending misnamed = recv(c, 0, 9, 3, 100ms);
      check_error(ErrorKind::kTimeout,
                  {"not received yet: tag=10 (count=3, dtype=int32) from rank 0, tag=11 ",
                   "tag=12 ", " and 1 more"},
                  [&] { wait(c, misnamed); });
      for (int tag = 10; tag < 14; ++tag) wait(c, recv(c, 0, tag, 3));
    }
    c.barrier(kPatience);

    // The slots are full of a message without a receive; a second message behind it has not begun.
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
  everywhere(2, [](Communicator& c) {
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
  std::barrier closed(3);  // by rank 0, while the others are there
  everywhere(3, [&](Communicator& c) {
    const int peer = (c.rank() + 1) % 3;
    std::vector<Pending> operations;
    for (int tag = 0; tag < 5; ++tag) {
      operations.push_back(send(c, peer, tag, numbers(6 * slot_count(3), 0)));
      operations.push_back(recv(c, (c.rank() + 2) % 3, 100 + tag, 10));
      operations.push_back(recv(c, kAnySource, 200 + tag, 10));
    }
    c.barrier(kPatience);
    if (c.rank() == 0) {
      std::thread waiter([&] {
        check_error(ErrorKind::kClosed, {"the end", "tag=200"}, [&] { wait(c, operations[2]); });
      });
      c.close("the end");
      waiter.join();
      closed.arrive_and_wait();
    } else {
      closed.arrive_and_wait();
      c.close("the end");
    }
    for (const Pending& operation : operations) {
      if (c.rank() == 0 && operation == operations[2]) continue;
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
    everywhere(2, [](Communicator& c) {
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

}  // namespace
