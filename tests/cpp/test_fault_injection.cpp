// What raises has not happened. Every allocation, thread creation and system call of one rank is
// made to fail once, in turn, in every collective, in messages, in the queue and in set-up.
//
// Afterwards the call was done, or every rank has raised, or the group is broken for all of them:
// no rank waits for its time-out, and no later call meets one of another place in the program.
#include <algorithm>
#include <barrier>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "check.h"
#include "collective_cases.h"
#include "core/flight_recorder.h"
#include "core/queue.h"
#include "fault_injection.h"
#include "memory_store.h"
#include "messages.h"

namespace {

using namespace ringcomm;
using namespace std::chrono_literals;
using cases::Case;
using ranks::kPatience;

constexpr int kVictim = 1;
constexpr int kLaterCalls = 3;

struct Outcome {
  std::string error;              // of the call; empty: it was done
  bool is_right = false;          // its results
  bool may_be_alone = false;      // it may be done though another rank raised
  std::vector<float> later = {};  // sums of later calls; fewer if one of them raised
};

std::string text(const std::exception_ptr& error) { return error ? what_of(error) : ""; }

std::vector<float> make_later_calls(Communicator& communicator) {
  std::vector<float> sums;
  for (int step = 1; step <= kLaterCalls; ++step) {
    std::vector<float> x(step % 2 == 0 ? 50'000 : 3, static_cast<float>(step));
    const auto error = error_of([&] {
      communicator.all_reduce(x.data(), x.data(), x.size(), {DType::kFloat32, ReduceOp::kSum},
                              kPatience);
    });
    if (error) break;
    sums.push_back(x.back());
  }
  return sums;
}

void judge(const std::vector<Outcome>& outcomes, const std::string& where) {
  const auto has_raised = [](const Outcome& outcome) { return !outcome.error.empty(); };
  const bool any = std::ranges::any_of(outcomes, has_raised);
  const bool all = std::ranges::all_of(
      outcomes, [&](const Outcome& o) { return has_raised(o) || o.may_be_alone; });
  const bool works =
      std::ranges::any_of(outcomes, [](const Outcome& o) { return !o.later.empty(); });
  std::vector<float> expected;
  for (int step = 1; works && step <= kLaterCalls; ++step) {
    expected.push_back(static_cast<float>(step * outcomes.size()));
  }
  CHECK_WITH(!any || all || !works, where + ": some ranks raised, and the group works");
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    const std::string who = where + ", rank " + std::to_string(r) + ": ";
    const Outcome& outcome = outcomes[r];
    CHECK_WITH(has_raised(outcome) || outcome.is_right, who + "wrong results");
    CHECK_WITH(outcome.later == expected, who + "later calls are other calls, or some of none");
    CHECK_WITH(outcome.error.find("Timed out") == std::string::npos, who + outcome.error);
  }
}

// body(communicator) is carried out by all ranks of a new group for each point at which the victim
// can fail; returns how many there were.
template <typename Prepare>
long fail_at_each_point(const Placement& placement, const std::string& algorithm,
                        const std::string& name, Prepare prepare) {
  const int n = static_cast<int>(placement.host_of.size());
  for (long point = 1;; ++point) {
    bool was_reached = false;
    std::vector<Outcome> outcomes(n);
    std::barrier together(n);
    ranks::with_group(placement, algorithm, [&](Communicator& communicator) {
      const int rank = communicator.rank();
      const faults::Working working(rank);
      Outcome& outcome = outcomes[rank];
      auto call = prepare(communicator);
      together.arrive_and_wait();
      if (rank == 0) faults::arm(kVictim, point);
      together.arrive_and_wait();
      const std::exception_ptr error = error_of([&] { call(); });
      together.arrive_and_wait();
      if (rank == 0) was_reached = faults::disarm();
      together.arrive_and_wait();
      outcome.error = text(error);
      outcome.is_right = error || call.is_right();
      outcome.may_be_alone = call.may_be_alone();
      outcome.later = make_later_calls(communicator);
      together.arrive_and_wait();
    });
    judge(outcomes, name + ", point " + std::to_string(point));
    if (!was_reached) return point - 1;
  }
}

// A collective as the backend makes it; without a part, a barrier.
struct CollectiveCall {
  Communicator& communicator;
  std::unique_ptr<cases::Part> part;
  void operator()() {
    communicator.settled(1, kPatience, [&] {
      part ? part->call(communicator, kPatience) : communicator.barrier(kPatience);
    });
  }
  bool is_right() const { return !part || part->right(); }
  bool may_be_alone() const { return false; }
};

void fail_in_collectives(int world_size, const std::string& algorithm) {
  long points = 0;
  std::mt19937_64 random(7);
  for (const Collective collective : cases::kCollectives) {
    if (algorithm != "auto" && collective != Collective::kAllReduce) continue;
    for (const std::size_t nbytes : {64, 64 << 10, 1 << 20}) {
      if (collective == Collective::kBarrier && nbytes > 64) continue;
      const Case c = cases::random_case(collective, world_size, nbytes, random);
      points += fail_at_each_point(Placement::one_host(world_size), algorithm, c.name(world_size),
                                   [&](Communicator& communicator) {
                                     std::unique_ptr<cases::Part> part;
                                     if (collective != Collective::kBarrier) {
                                       part = std::make_unique<cases::Part>(c, communicator.rank(),
                                                                            world_size);
                                       part->fill();
                                     }
                                     return CollectiveCall{communicator, std::move(part)};
                                   });
    }
  }
  std::printf("%ld points, %d ranks, %s\n", points, world_size, algorithm.c_str());
}

TEST(collectives_of_two_ranks) { fail_in_collectives(2, "auto"); }
TEST(collectives_of_three_ranks) { fail_in_collectives(3, "auto"); }
TEST(a_selected_algorithm) { fail_in_collectives(3, "ring"); }

// Rank 0 and the victim exchange a message; who fails to post its own refuses it.
struct Exchanged {
  Communicator& communicator;
  bool is_send;
  bool is_awaited;
  messages::Pending operation;

  void operator()() {
    const auto kind = is_send ? shm::Message::Kind::kSend : shm::Message::Kind::kRecv;
    const int peer = 1 - communicator.rank();
    const auto error = error_of([&] { communicator.post(operation->message); });
    if (error) {
      const auto untold =
          error_of([&] { communicator.refuse_message(kind, peer, 5, what_of(error), kPatience); });
      if (untold) communicator.group().fail_with(untold, [] { return std::string("refusing"); });
      std::rethrow_exception(error);
    }
    if (is_awaited) communicator.wait(*operation->message, kPatience);
    operation->completed.get();
  }
  bool is_right() const { return operation->data == messages::numbers(operation->data.size(), 0); }
  // A send is done when its last slot is written.
  bool may_be_alone() const { return is_send; }
};

TEST(messages_of_two_ranks) {
  long points = 0;
  for (const bool victim_sends : {true, false}) {
    for (const bool is_awaited : {true, false}) {
      for (const std::size_t count : {0, 10, 1'000'000}) {
        const std::string name = std::string(victim_sends ? "send" : "recv") +
                                 (is_awaited ? "" : " in the background") + " of " +
                                 std::to_string(count);
        points += fail_at_each_point(
            Placement::one_host(2), "auto", name, [&](Communicator& communicator) {
              const bool is_send = (communicator.rank() == kVictim) == victim_sends;
              const int peer = 1 - communicator.rank();
              auto operation = messages::prepare(
                  is_send ? shm::Message::Kind::kSend : shm::Message::Kind::kRecv, peer, 5,
                  is_send ? messages::numbers(count, 0) : std::vector<std::int32_t>(count));
              operation->message->is_awaited = is_awaited;
              return Exchanged{communicator, is_send, is_awaited, std::move(operation)};
            });
      }
    }
  }
  std::printf("%ld points\n", points);
}

TEST(refusing_a_call) {
  struct Refusal {
    Communicator& communicator;
    std::string reason = "its count is negative";
    void operator()() {
      if (communicator.rank() == kVictim) {
        communicator.refuse(reason, kPatience);
        throw Error(ErrorKind::kInvalidArgument, "its count is negative");
      }
      communicator.barrier(kPatience);
    }
    bool is_right() const { return true; }
    bool may_be_alone() const { return false; }
  };
  const long points =
      fail_at_each_point(Placement::one_host(2), "auto", "a refusal",
                         [](Communicator& communicator) { return Refusal{communicator}; });
  std::printf("%ld points\n", points);
}

TEST(submitting_to_the_queue) {
  long points = 0;
  for (const bool is_busy : {false, true}) {
    for (bool was_reached = true; was_reached; ++points) {
      const faults::Working working(kVictim);
      std::atomic<int> runs{0}, completions{0}, expected{0};
      {
        Queue queue;
        if (is_busy) CHECK(queue.try_enter());
        faults::arm(kVictim, points + 1);
        const auto submit = [&] {
          queue.submit({[&] { ++runs; }, [&] { ++completions; }});
          ++expected;
        };
        error_of(submit);
        if (is_busy) queue.leave();
        while (queue.help()) {
        }
        was_reached = faults::disarm();
        for (int i = 0; i < 10; ++i) submit();
      }
      CHECK_EQ(runs.load(), expected.load());
      CHECK_EQ(completions.load(), expected.load());
      if (!was_reached) break;
    }
  }
  std::printf("%ld points\n", points);
}

// If no thread can be had, queued operations run on the thread that gives the turn back.
TEST(a_queue_without_threads) {
  const faults::Working working(kVictim);
  int runs = 0;
  Queue queue;
  CHECK(queue.try_enter());
  for (int i = 0; i < 3; ++i) queue.submit({[&] { ++runs; }, [] {}});
  struct NoThreads {
    NoThreads() { faults::has_threads = false; }
    ~NoThreads() { faults::has_threads = true; }
  } no_threads;
  queue.leave();
  CHECK_EQ(runs, 3);
  CHECK(queue.is_idle());
  CHECK_THROWS(queue.submit({[&] { ++runs; }, [] {}}), Error);
  CHECK(!queue.help());
  CHECK_EQ(runs, 3);
}

TEST(making_a_group) {
  long points = 0;
  for (bool was_reached = true; was_reached; ++points) {
    std::vector<std::string> errors(2);
    ranks::MemoryStore store;
    std::barrier together(2);
    ranks::on_threads(2, [&](int rank) {
      const faults::Working working(rank);
      Invitation invitation = ranks::invite(rank, 2);
      invitation.timeout = 20s;
      if (rank == kVictim) faults::arm(kVictim, points + 1);
      const Selection selection;
      std::optional<Communicator> communicator;
      const auto error = error_of([&] {
        communicator.emplace(store, invitation, selection);
        communicator->barrier(kPatience);
      });
      errors[rank] = text(error);
      together.arrive_and_wait();
      if (rank == kVictim) was_reached = faults::disarm();
      together.arrive_and_wait();
      if (!error) communicator->close("done");
    });
    const std::string where = "point " + std::to_string(points + 1) + ": ";
    CHECK_WITH(errors[0].empty() == errors[1].empty(), where + errors[0] + " / " + errors[1]);
    for (const std::string& error : errors) {
      CHECK_WITH(error.find("imed out") == std::string::npos, where + error);
    }
  }
  std::printf("%ld points\n", points - 1);
}

}  // namespace
