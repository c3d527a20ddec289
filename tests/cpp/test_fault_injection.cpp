// What raises has not happened. Every allocation, thread creation and system call of one rank is
// made to fail once, in turn, in every collective, in messages, in the queue and in set-up.
//
// Afterwards the call was done, or every rank has raised, or the group is broken for all of them:
// no rank waits for its time-out, and no later call meets one of another place in the program.
#include <algorithm>
#include <barrier>
#include <csignal>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "collective_cases.h"
#include "core/flight_recorder.h"
#include "core/queue.h"
#include "core/thread.h"
#include "fault_injection.h"
#include "memory_store.h"
#include "messages.h"
#include "mortal_ranks.h"

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
    const std::string rank = where + ", rank " + std::to_string(r) + ": ";
    const Outcome& outcome = outcomes[r];
    CHECK_WITH(has_raised(outcome) || outcome.is_right, rank + "wrong results");
    CHECK_WITH(outcome.later == expected, rank + "later calls are other calls, or some of none");
    CHECK_WITH(outcome.error.find("Timed out") == std::string::npos, rank + outcome.error);
  }
}

void with_group(const Placement& placement, const std::string& algorithm,
                const std::function<void(Communicator&)>& body) {
  if (placement.num_hosts() == 1) return ranks::with_group(placement, algorithm, body);
  ranks::on_hosts(placement.host_of, algorithm, ranks::MemoryNetwork::make(), body);
}

// From one point to the next that is tried. All take minutes: a larger one is for a first look.
long stride() { return std::max(1L, check::from_environment("RINGCOMM_TEST_STRIDE", 1)); }

// body(communicator) is carried out by all ranks of a new group for points at which the victim can
// fail; returns how many were tried.
template <typename Prepare>
long fail_at_each_point(const Placement& placement, const std::string& algorithm,
                        const std::string& name, Prepare prepare, int victim_rank = kVictim) {
  const int n = static_cast<int>(placement.host_of.size());
  for (long point = 1, points = 0;; point += stride(), ++points) {
    bool was_reached = false;
    faults::Victim victim;
    std::vector<Outcome> outcomes(n);
    std::barrier together(n);
    with_group(placement, algorithm, [&](Communicator& communicator) {
      const int rank = communicator.rank();
      const faults::Working working(rank == victim_rank ? &victim : nullptr);
      Outcome& outcome = outcomes[rank];
      auto call = prepare(communicator);
      together.arrive_and_wait();
      if (rank == 0) victim.arm(point);
      together.arrive_and_wait();
      const std::exception_ptr error = error_of([&] { call(); });
      together.arrive_and_wait();
      if (rank == 0) was_reached = victim.disarm();
      together.arrive_and_wait();
      outcome.error = text(error);
      outcome.is_right = error || call.is_right();
      outcome.may_be_alone = call.may_be_alone();
      outcome.later = make_later_calls(communicator);
      together.arrive_and_wait();
    });
    judge(outcomes, name + ", point " + std::to_string(point));
    if (!was_reached) return points;
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

constexpr std::size_t kEager = 64, kOneSlice = 64 << 10, kSlices = 1 << 20;  // bytes

void fail_in_collectives(const std::vector<int>& host_of, const std::string& algorithm,
                         const std::vector<std::size_t>& sizes) {
  const Placement placement = Placement::of(host_of);
  const int world_size = static_cast<int>(host_of.size());
  long points = 0;
  std::mt19937_64 random(7);
  for (const Collective collective : cases::kCollectives) {
    if (algorithm != "auto" && collective != Collective::kAllReduce) continue;
    for (const std::size_t nbytes : sizes) {
      if (collective == Collective::kBarrier && nbytes != sizes.front()) continue;
      const Case c = cases::random_case(collective, world_size, nbytes, random);
      points += fail_at_each_point(
          placement, algorithm, c.name(world_size), [&](Communicator& communicator) {
            std::unique_ptr<cases::Part> part;
            if (collective != Collective::kBarrier) {
              part = std::make_unique<cases::Part>(c, communicator.rank(), world_size);
              part->fill();
            }
            return CollectiveCall{communicator, std::move(part)};
          });
    }
  }
  std::printf("%ld points, %d ranks, %d hosts, %s\n", points, world_size, placement.num_hosts(),
              algorithm.c_str());
}

TEST(collectives_of_two_ranks) { fail_in_collectives({0, 0}, "auto", {kEager, kSlices}); }
TEST(collectives_of_three_ranks) { fail_in_collectives({0, 0, 0}, "auto", {kSlices}); }
TEST(a_selected_algorithm) { fail_in_collectives({0, 0, 0}, "ring", {kOneSlice, kSlices}); }
TEST(collectives_of_two_hosts) { fail_in_collectives({0, 1}, "auto", {kEager, kSlices}); }
TEST(collectives_of_a_host_of_two_and_one_of_one) {
  fail_in_collectives({0, 1, 0}, "auto", {kOneSlice});
}

// Rank 0 and the victim exchange a message; a rank that fails to post its own refuses it.
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
      const auto refusal_error =
          error_of([&] { communicator.refuse_message(kind, peer, 5, what_of(error), kPatience); });
      if (refusal_error)
        communicator.group().fail_with(refusal_error, [] { return std::string("refusing"); });
      std::rethrow_exception(error);
    }
    if (is_awaited) communicator.wait(*operation->message, kPatience);
    operation->completed.get();
  }
  bool is_right() const { return operation->data == messages::numbers(operation->data.size(), 0); }
  // A send is done when its last slot is written.
  bool may_be_alone() const { return is_send; }
};

void fail_in_messages(const Placement& placement) {
  long points = 0;
  for (const bool victim_sends : {true, false}) {
    for (const bool is_awaited : {true, false}) {
      for (const std::size_t count : {0, 10, 1'000'000}) {
        const std::string name = std::string(victim_sends ? "send" : "recv") +
                                 (is_awaited ? "" : " in the background") + " of " +
                                 std::to_string(count);
        points += fail_at_each_point(placement, "auto", name, [&](Communicator& communicator) {
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

TEST(messages_of_two_ranks) { fail_in_messages(Placement::one_host(2)); }
TEST(messages_between_hosts) { fail_in_messages(Placement::of(std::vector<int>{0, 1})); }

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

TEST(monitored_barriers) {
  struct Barrier {
    Communicator& communicator;
    int victim;
    void operator()() {
      if (communicator.rank() != victim) std::this_thread::sleep_for(20ms);  // the victim waits
      communicator.monitored_barrier(/*wait_all_ranks=*/false, kPatience);
    }
    bool is_right() const { return true; }
    bool may_be_alone() const { return false; }
  };
  long points = 0;
  for (const int victim : {0, 1}) {
    points += fail_at_each_point(
        Placement::one_host(2), "auto", "a monitored barrier",
        [&](Communicator& communicator) { return Barrier{communicator, victim}; }, victim);
  }
  std::printf("%ld points\n", points);
}

TEST(submitting_to_the_queue) {
  long points = 0;
  for (const bool is_busy : {false, true}) {
    for (bool was_reached = true; was_reached; ++points) {
      faults::Victim victim;
      const faults::Working working(&victim);
      std::atomic<int> runs{0}, completions{0}, expected{0};
      {
        Queue queue;
        if (is_busy) CHECK(queue.try_enter());
        victim.arm(points + 1);
        const auto submit = [&] {
          queue.submit({[&] { ++runs; }, [&] { ++completions; }});
          ++expected;
        };
        error_of(submit);
        if (is_busy) queue.leave();
        while (queue.help()) {
        }
        was_reached = victim.disarm();
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
  faults::Victim victim;
  const faults::Working working(&victim);
  int runs = 0;
  Queue queue;
  CHECK(queue.try_enter());
  for (int i = 0; i < 3; ++i) queue.submit({[&] { ++runs; }, [] {}});
  victim.has_threads = false;
  queue.leave();
  CHECK_EQ(runs, 3);
  CHECK(queue.is_idle());
  CHECK_THROWS(queue.submit({[&] { ++runs; }, [] {}}), Error);
  CHECK(!queue.help());
  CHECK_EQ(runs, 3);
}

TEST(a_refused_thread_leaves_the_signal_mask_as_it_was) {
  FlightRecorder recorder(1);
  sigset_t one, before, after;
  sigemptyset(&one);
  sigaddset(&one, SIGUSR2);
  CHECK_EQ(pthread_sigmask(SIG_BLOCK, &one, &before), 0);
  faults::Victim victim;
  victim.has_threads = false;
  {
    const faults::Working working(&victim);
    CHECK_THROWS(dump_on_signal(recorder), NoThread);
  }
  CHECK_EQ(pthread_sigmask(SIG_SETMASK, &before, &after), 0);
  for (int signal = 1; signal < NSIG; ++signal) {
    const bool was_blocked = sigismember(&before, signal) == 1 || signal == SIGUSR2;
    CHECK_EQ(sigismember(&after, signal) == 1, was_blocked);
  }
}

// Whether the victim came to the point.
bool fail_in_making_a_group(const Placement& placement, long point) {
  const std::string where = "point " + std::to_string(point) + ": ";
  std::vector<std::string> errors(2);
  ranks::MemoryStore store;
  const auto network = ranks::MemoryNetwork::make();
  const auto connect_hosts = network->connect_hosts();
  faults::Victim victim;
  bool was_reached = false;
  std::barrier together(2);
  ranks::on_threads(2, [&](int rank) {
    const bool is_victim = rank == kVictim;
    const faults::Working working(is_victim ? &victim : nullptr);
    GroupConfig config = ranks::group_config(rank, placement);
    config.timeout = 20s;
    config.decline = [&](const std::string&, const std::string& why) {
      network->decline(rank, why);
    };
    const Selection selection;
    std::optional<Communicator> communicator;
    if (is_victim) victim.arm(point);
    auto error = error_of([&] { communicator.emplace(store, config, selection, connect_hosts); });
    if (is_victim) was_reached = victim.disarm();
    if (!error) error = error_of([&] { communicator->barrier(20s); });
    errors[rank] = text(error);
    together.arrive_and_wait();
    // A rank may fail, in a thread beside the call, after its peer had all that it needed for it.
    if (!error && !errors[1 - rank].empty()) {
      errors[rank] = text(error_of([&] { communicator->barrier(20s); }));
    }
    if (!error) communicator->close("done");
  });
  CHECK_WITH(errors[0].empty() == errors[1].empty(), where + errors[0] + " / " + errors[1]);
  for (const std::string& error : errors) {
    CHECK_WITH(error.find("imed out") == std::string::npos, where + error);
  }
  return was_reached;
}

// As ranks mostly wait, many points at once. fail(point) returns whether there is such a point.
void fail_at_many_points_at_once(const std::function<bool(long point)>& fail) {
  constexpr int kOneShot = 12;
  std::atomic<long> points{0};
  ranks::on_threads(kOneShot, [&](int i) {
    for (long point = 1 + i * stride(); fail(point); point += kOneShot * stride()) ++points;
  });
  std::printf("%ld points\n", points.load());
}

TEST(making_a_group) {
  fail_at_many_points_at_once(
      [](long point) { return fail_in_making_a_group(Placement::one_host(2), point); });
}
TEST(making_a_group_of_two_hosts) {
  fail_at_many_points_at_once([](long point) {
    return fail_in_making_a_group(Placement::of(std::vector<int>{0, 1}), point);
  });
}

// All ranks shrink their group, although all of them live, and again if that raised. Returns
// whether the victim came to the point.
bool fail_in_shrinking(const std::vector<int>& host_of, long point) {
  const std::string where = "point " + std::to_string(point) + ": ";
  mortal::World world(host_of);
  const int n = world.world_size();
  faults::Victim victim;
  bool was_reached = false;
  std::vector<std::string> errors(n);
  std::vector<std::vector<float>> later(n);
  std::barrier together(n);
  mortal::with_world(world, [&](mortal::Mortal& rank) {
    const bool is_victim = rank.rank == kVictim;
    const faults::Working working(is_victim ? &victim : nullptr);
    together.arrive_and_wait();
    if (is_victim) victim.arm(point);
    std::vector<int> survivors;
    const auto error = error_of([&] { survivors = rank.shrink({}, false, 20s); });
    if (is_victim) was_reached = victim.disarm();
    errors[rank.rank] = text(error);
    together.arrive_and_wait();
    const auto has_raised = [](const std::string& own) { return !own.empty(); };
    if (rank.rank == 0) {
      std::string all = where;
      for (const std::string& own : errors) all += own + " / ";
      CHECK_WITH(all.find("imed out") == std::string::npos, all);
      CHECK_WITH(std::ranges::count_if(errors, has_raised) % n == 0, all);
    }
    if (std::ranges::count_if(errors, has_raised) % n != 0) return;
    if (error) survivors = rank.shrink();
    CHECK_WITH(survivors == mortal::all_of(world), where + Members{}.names(survivors) + errors[0]);
    later[rank.rank] = make_later_calls(rank.group());
    together.arrive_and_wait();
  });
  // The new group may end, on all ranks: a thread that serves it can be what failed. It ends at any
  // time, so a rank may have completed the call in which another raises, but no call after that.
  const auto [fewest, most] = std::ranges::minmax(later, {}, &std::vector<float>::size);
  CHECK_WITH(most.size() - fewest.size() <= 1, where);
  for (const std::vector<float>& sums : later) {
    for (std::size_t step = 0; step < sums.size(); ++step) {
      CHECK_EQ(sums[step], static_cast<float>((step + 1) * n));
    }
  }
  return was_reached;
}

TEST(shrinking_on_one_host) {
  fail_at_many_points_at_once([](long point) { return fail_in_shrinking({0, 0, 0}, point); });
}
TEST(shrinking_two_hosts) {
  fail_at_many_points_at_once([](long point) { return fail_in_shrinking({0, 1, 0}, point); });
}

}  // namespace
