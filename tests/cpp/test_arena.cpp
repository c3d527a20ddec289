// The memory that peers can map: what it gives away, takes back and finds.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "shm/arena.h"
#include "shm/peer_memory.h"

namespace {

using ringcomm::shm::Arena;
using ringcomm::shm::PeerArenas;

struct Range {
  std::byte* begin;
  std::size_t nbytes;
  unsigned char mark;
};

TEST(nothing_is_given_twice_and_all_comes_back) {
  Arena& arena = *Arena::of_this_process();
  CHECK(Arena::existing() == &arena);
  std::mt19937 random(1);
  std::vector<Range> held;
  const auto is_intact = [](const Range& range) {
    return std::all_of(range.begin, range.begin + range.nbytes,
                       [&](std::byte value) { return value == std::byte{range.mark}; });
  };
  std::byte* most = nullptr;
  for (int i = 0; i < 4000; ++i) {
    if (held.size() > 50 || (random() % 2 == 0 && !held.empty())) {
      std::swap(held[random() % held.size()], held.back());
      CHECK(is_intact(held.back()));
      CHECK(Arena::free(held.back().begin));
      held.pop_back();
      continue;
    }
    const std::size_t nbytes = random() % 10 == 0 ? 0 : random() % 20'000;
    auto* const data = static_cast<std::byte*>(arena.allocate(nbytes));
    CHECK_EQ(reinterpret_cast<std::uintptr_t>(data) % 128, 0u);
    const auto mark = static_cast<unsigned char>(random());
    std::memset(data, mark, nbytes);
    held.push_back({data, nbytes, mark});
    most = std::max(most, data + nbytes);
  }
  for (const Range& range : held) {
    CHECK(is_intact(range));
    CHECK(Arena::free(range.begin));
  }
  // What was freed has become one range again: more than was ever used fits at the beginning.
  void* const all = arena.allocate(2'000'000);
  CHECK_EQ(arena.find(all, 2'000'000).value(), 0u);
  CHECK(most - static_cast<std::byte*>(all) < 2'000'000);
  CHECK(Arena::free(all));
}

TEST(what_does_not_fit_and_what_lies_elsewhere) {
  Arena& arena = *Arena::of_this_process();
  CHECK(arena.allocate(std::size_t{1} << 60) == nullptr);
  CHECK(arena.allocate(SIZE_MAX) == nullptr);
  char elsewhere = 0;
  CHECK(!Arena::free(&elsewhere));
  CHECK(!arena.find(&elsewhere, 1));
  void* const data = arena.allocate(100);
  CHECK(arena.find(data, 100).has_value());
  CHECK(!arena.find(data, std::size_t{1} << 60));
  CHECK(!arena.find(data, SIZE_MAX));
  CHECK(Arena::free(data));
}

TEST(peers_map_it_whole_and_reach_nothing_else) {
  Arena& arena = *Arena::of_this_process();
  auto* const data = static_cast<std::byte*>(arena.allocate(5000));
  const std::uint64_t place = *arena.find(data, 5000);
  PeerArenas peers(2);
  CHECK(!peers.knows(1));
  CHECK(peers.at(1, place, 1) == nullptr);
  peers.learn(1, arena.file());
  CHECK(peers.knows(1));
  std::byte* const theirs = peers.at(1, place, 5000);
  data[4999] = std::byte{42};
  CHECK_EQ(static_cast<int>(theirs[4999]), 42);
  CHECK(peers.at(1, std::uint64_t{1} << 60, 1) == nullptr);
  CHECK(peers.at(1, place, SIZE_MAX) == nullptr);
  peers.learn(0, "/proc/self/fd/0 ringcomm-unknown");
  CHECK(peers.has_learnt(0) && !peers.knows(0));
  CHECK(Arena::free(data));
}

// Otherwise both would give the same memory to tensors of their own.
TEST(a_child_has_an_arena_of_its_own) {
  Arena& parents = *Arena::of_this_process();
  auto* const data = static_cast<char*>(parents.allocate(1000));
  std::strcpy(data, "parent");
  const pid_t child = fork();
  if (child == 0) {
    bool right = Arena::existing() == nullptr && std::strcmp(data, "parent") == 0;
    Arena& own = *Arena::of_this_process();
    right = right && &own != &parents && own.file() != parents.file();
    auto* const mine = static_cast<char*>(own.allocate(1000));
    std::strcpy(mine, "child");
    right = right && Arena::free(data) && Arena::free(mine) && !parents.find(mine, 1);
    _exit(right ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
  CHECK(std::strcmp(data, "parent") == 0);
  CHECK(Arena::free(data));
}

}  // namespace
