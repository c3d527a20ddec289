// Going on without the dead in groups that span hosts, which are played by threads: hosts that fall
// silent or are cut off. What one host has, too, is in test_shrink_threads.cpp.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <thread>

#include "check.h"
#include "errors.h"
#include "mortal_ranks.h"
#include "setup/store.h"
#include "shm/membership_report.h"

namespace {

using namespace ringcomm;
using namespace mortal;
using namespace std::chrono_literals;
using check::check_error;

// The other ranks of its host do not know of it before they call.
TEST(a_host_whose_leader_died_is_waited_for) {
  World world({0, 0, 1});
  with_world(world, [&](Mortal& rank) {
    if (rank.rank == 0) return rank.die();
    if (rank.rank == 1) std::this_thread::sleep_for(1500ms);
    expect(go_on(rank), {1, 2}, "rank 1 came late");
  });
}

TEST(a_host_without_living_ranks) {
  World world({0, 0, 1, 1});
  with_world(world, [&](Mortal& rank) {
    if (rank.rank >= 2) return rank.die();
    expect(go_on(rank), {0, 1}, "host 1 died");
  });
}

// Both parts reach the store: the larger one goes on, and the other one raises.
TEST(hosts_that_are_cut_from_each_other) {
  struct Case {
    Ranks host_of;
    std::pair<Ranks, Ranks> parts;
    Ranks go_on;
  };
  const Case cases[] = {{{0, 0, 1}, {{0, 1}, {2}}, {0, 1}},
                        {{0, 1, 1}, {{0}, {1, 2}}, {1, 2}},
                        {{0, 1}, {{0}, {1}}, {0}},
                        {{0, 1, 2}, {{1}, {2}}, {0, 1}}};
  ranks::on_threads(std::size(cases), [&](int i) {
    const auto& [host_of, parts, expected] = cases[i];
    World world(host_of);
    std::barrier together(world.world_size());
    with_world(world, [&](Mortal& rank) {
      std::this_thread::sleep_for(1s);  // until all hosts have spoken
      together.arrive_and_wait();
      for (const int a : parts.first) {
        for (const int b : parts.second) {
          if (rank.rank != a && rank.rank != b) continue;
          world.meeting("").network->silence(a, b);
          world.meeting("").network->silence(b, a);
        }
      }
      std::this_thread::sleep_for(4500ms);
      if (std::ranges::binary_search(expected, rank.rank)) {
        expect(rank.shrink(), expected, "the larger part");
        rank.group().barrier(kPatience);
      } else {
        check_error(ErrorKind::kClosed,
                    {"rank " + std::to_string(rank.rank), "gone on without this one"},
                    [&] { rank.shrink(); });
      }
    });
  });
}

TEST(reports_are_read_as_they_were_written) {
  using shm::MembershipReport;
  using shm::MemberState;
  const MembershipReport report_{
      .number = ~std::uint64_t{0},
      .listens = true,
      .ranks = {MemberState::kJoined, MemberState::kNothing, MemberState::kGone},
      .calls = {{0, 17}}};
  const auto read = MembershipReport::read(report_.text(), 3);
  CHECK(read && read->number == report_.number && read->says_the_same_as(report_));
  CHECK(!MembershipReport::read(report_.text(), 4));
  CHECK(!MembershipReport::read("", 3));
}

// Its calls never return, as those of a store that was cut off.
struct SilentStore : MemoryStore {
  std::optional<std::string> find(const std::string&) override {
    while (!is_over) std::this_thread::sleep_for(1ms);
    ++ended;
    return std::nullopt;
  }
  std::atomic<bool> is_over{false};
  std::atomic<int> ended{0};
};

TEST(a_store_that_does_not_answer_is_an_error) {
  const auto silent = std::make_shared<SilentStore>();
  PatientStore store(silent, 200ms);
  CHECK_EQ(store.set_once("a", "1"), std::string("1"));
  CHECK_EQ(store.set_once("a", "2"), std::string("1"));
  CHECK_EQ(store.add("b", 2), 2);
  check_error(ErrorKind::kSystem, {"has not answered for 0.2 s", "\"key\""},
              [&] { store.find("key"); });
  check_error(ErrorKind::kSystem, {"has not answered"}, [&] { store.add("b", 2); });
  silent->is_over = true;
  while (silent->ended == 0) std::this_thread::sleep_for(1ms);
}

}  // namespace
