// The board on which ranks say what they have enqueued on their devices.
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "core/call.h"
#include "core/device_board.h"
#include "errors.h"
#include "memory_store.h"
#include "shm/group.h"

namespace {

using namespace ringcomm;

constexpr int kRanks = 3;
using Groups = std::array<std::unique_ptr<shm::Group>, kRanks>;

Groups make_groups() {
  ranks::MemoryStore store;
  Groups groups;
  ranks::on_threads(kRanks, [&](int r) {
    groups[r] = std::make_unique<shm::Group>(store, ranks::group_config(r, kRanks));
  });
  return groups;
}

Call numbered(std::uint64_t sequence, std::size_t count) {
  Call call = make_call(Collective::kAllReduce, count, Reduce{DType::kFloat32, ReduceOp::kSum});
  call.sequence = sequence;
  return call;
}

}  // namespace

TEST(calls_are_found_until_they_are_overwritten) {
  const Groups groups = make_groups();
  DeviceBoard &mine = groups[0]->board(), &other = groups[1]->board();
  CHECK(!other.find(0, 1));
  for (std::uint64_t s = 1; s <= kDeviceCalls + 1; ++s) mine.enqueue(numbered(s, 100 + s));
  CHECK(!other.find(0, 1));
  CHECK_EQ(other.find(0, 2)->count, 102u);
  CHECK_EQ(other.enqueued(0), kDeviceCalls + 1u);
}

TEST(a_rank_that_called_something_else_is_named) {
  const Groups groups = make_groups();
  for (int r = 0; r < kRanks; ++r) groups[r]->board().enqueue(numbered(1, r == 2 ? 7 : 8));
  DeviceBoard& board = groups[0]->board();
  CHECK_CONTAINS(board.describe_mismatch(1), "rank 2 called all_reduce(count=7");
  board.enqueue(numbered(2, 8));
  CHECK_EQ(board.describe_mismatch(2), "");  // the others may still call the same
}

TEST(the_awaited_ranks_are_named) {
  const Groups groups = make_groups();
  DeviceBoard &board = groups[0]->board(), &other = groups[1]->board(), &last = groups[2]->board();
  board.enqueue(numbered(1, 8));
  other.enqueue(numbered(1, 8));
  CHECK_CONTAINS(board.describe_awaited(1), "rank 2: rank 2 has enqueued #0");
  last.enqueue(numbered(1, 8));
  other.complete(1);
  CHECK_CONTAINS(board.describe_awaited(1), "rank 2: rank 2 has enqueued #1 and completed #0");
  last.complete(1);
  CHECK_CONTAINS(board.describe_awaited(1), "this rank's own device");
  groups[2]->close("the end");
  board.enqueue(numbered(2, 8));
  other.enqueue(numbered(2, 8));
  CHECK_CONTAINS(board.describe_awaited(2), "rank 2 (it has closed the group)");
}

TEST(what_is_read_while_it_is_overwritten_is_not_believed) {
  const Groups groups = make_groups();
  constexpr std::uint64_t kCalls = 20000;
  std::atomic<bool> done{false};
  std::thread writer([&] {
    DeviceBoard& board = groups[0]->board();
    for (std::uint64_t s = 1; s <= kCalls; ++s) board.enqueue(numbered(s, s));
    done = true;
  });
  DeviceBoard& board = groups[1]->board();
  while (!done) {
    const std::uint64_t latest = board.enqueued(0);
    const std::uint64_t sequence = latest > 60 ? latest - 60 : latest;
    const auto call = board.find(0, sequence);
    if (call) CHECK_EQ(call->count, sequence);
  }
  writer.join();
}

TEST(ranks_meet_by_what_they_greet_with) {
  const Groups groups = make_groups();
  DeviceBoard &low = groups[0]->board(), &high = groups[2]->board(), &other = groups[1]->board();
  CHECK(!high.unique_id_of(0));
  CHECK(!high.unique_id_to_all(0));
  DeviceBoard::UniqueId unique_id{};
  unique_id.back() = std::byte{7};
  low.send_unique_id(2, unique_id);
  CHECK(high.unique_id_of(0) == unique_id);
  CHECK(!low.unique_id_of(2));  // the other one has said nothing yet
  CHECK(!other.unique_id_of(0));
  CHECK(!other.unique_id_to_all(0));
  low.send_unique_id_to_all(unique_id);
  CHECK(other.unique_id_to_all(0) == unique_id);
  low.join({1, 2, 3, 4});
  CHECK(other.not_joined() == (std::vector{1, 2}));
  CHECK(other.settings_of(0) == (DeviceBoard::Settings{1, 2, 3, 4}));
}

TEST(what_a_rank_still_holds_is_published_when_it_closes) {
  const Groups groups = make_groups();
  DeviceBoard &board = groups[0]->board(), &other = groups[1]->board();
  const std::vector<int> both{0, 1};
  CHECK(board.least_closed(both) == DeviceBoard::Closing::kNot);
  board.close(DeviceBoard::Closing::kFree);
  CHECK(board.least_closed(both) == DeviceBoard::Closing::kNot);
  CHECK(board.least_closed({0}) == DeviceBoard::Closing::kFree);
  other.close(DeviceBoard::Closing::kHeld);
  CHECK(board.least_closed(both) == DeviceBoard::Closing::kFree);
  CHECK(board.most_closed(both) == DeviceBoard::Closing::kHeld);
}
