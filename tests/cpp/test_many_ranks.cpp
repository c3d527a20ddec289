// Many ranks on one host: hundreds as processes, dozens as threads.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "check.h"
#include "file_store.h"
#include "memory_store.h"

namespace {

using namespace ringcomm;
using ranks::kPatience;

constexpr int kRanks = 256;
constexpr Reduce kSum{DType::kInt32, ReduceOp::kSum};

// All ranks add rank + i in element i.
void check_all_reduce(Communicator& c, std::size_t count) {
  std::vector<std::int32_t> data(count);
  for (std::size_t i = 0; i < count; ++i) data[i] = c.rank() + static_cast<int>(i);
  c.all_reduce(data.data(), data.data(), count, kSum, kPatience);
  const int n = c.world_size();
  for (std::size_t i = 0; i < count; ++i) {
    if (data[i] == n * (n - 1) / 2 + n * static_cast<int>(i)) continue;
    CHECK_EQ(data[i], n * (n - 1) / 2 + n * static_cast<int>(i));
    return;
  }
}

// To the next rank, in several slots.
void check_message(Communicator& c) {
  const int n = c.world_size();
  auto posted = [&](shm::Message::Kind kind, int peer, std::vector<std::int32_t>& data) {
    auto message = std::make_shared<shm::Message>();
    message->kind = kind;
    message->peer = peer;
    message->tag = 3;
    message->dtype = DType::kInt32;
    message->data = reinterpret_cast<std::byte*>(data.data());
    message->count = data.size();
    message->deadline = Deadline::in(kPatience);
    message->on_done = [](std::exception_ptr error) { CHECK(!error); };
    c.post(message);
    return message;
  };
  std::vector<std::int32_t> out(5000, c.rank()), in(5000);
  const int prev = (c.rank() + n - 1) % n;
  const auto sent = posted(shm::Message::Kind::kSend, (c.rank() + 1) % n, out);
  const auto received = posted(shm::Message::Kind::kRecv, prev, in);
  CHECK(c.wait(*sent, kPatience) && c.wait(*received, kPatience));
  CHECK(in == std::vector<std::int32_t>(in.size(), prev));
}

void check_all(Communicator& c) {
  c.barrier(kPatience);
  check_all_reduce(c, 100);
  check_all_reduce(c, 40'000);
  check_message(c);
  c.barrier(kPatience);
}

// First, while there is little memory to fork.
TEST(as_processes) {
  std::string folder = std::filesystem::temp_directory_path() / "ringcomm-XXXXXX";
  CHECK(mkdtemp(folder.data()) != nullptr);
  std::vector<pid_t> children;
  for (int r = 0; r < kRanks; ++r) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    try {
      ranks::FileStore store(folder);
      Communicator communicator(store, ranks::group_config(r, kRanks),
                                Selection::named("recursive_doubling"));
      check_all(communicator);
    } catch (const std::exception& error) {
      check::fail(__FILE__, __LINE__, "rank " + std::to_string(r) + ": " + error.what());
    }
    _exit(check::failures == 0 ? 0 : 1);
  }
  for (const pid_t child : children) {
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  std::filesystem::remove_all(folder);
}

// More than a word has bits. Each maps the group's memory, and compiles its programs from the plans
// of all, which takes a minute for hundreds under sanitizers.
TEST(as_threads) {
  for (const char* algorithm : {"recursive_doubling", "ring", "direct"}) {
    ranks::with_group(66, algorithm, check_all);
  }
}

}  // namespace
