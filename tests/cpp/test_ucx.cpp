// UCX keeps what engines promise, between threads of a process and between processes.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "engine_contract.h"
#include "errors.h"
#include "file_store.h"
#include "hosts/address.h"
#include "hosts/ucx_library.h"
#include "memory_store.h"

#ifdef __SANITIZE_ADDRESS__
// It stumbles over the threads that UCX leaves at the end.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }
#endif

namespace {

using namespace std::chrono_literals;
using contract::Rank;
using ringcomm::links::Engine;

std::unique_ptr<Engine> make_ucx_engine(const std::shared_ptr<ringcomm::Store>& store, int rank,
                                        int world_size) {
  ringcomm::links::look_for_ucx_in(UCX_LIBRARIES);
  return ringcomm::links::make_ucx_engine(store, rank, world_size);
}

// Ranks as processes, forked before UCX is loaded; the exit status of each.
class Processes {
 public:
  explicit Processes(int world_size) : world_size_(world_size) {
    char name[] = "/tmp/ringcomm-test-ucx-XXXXXX";
    folder_ = mkdtemp(name);
    store_ = std::make_shared<ranks::FileStore>(folder_);
  }
  ~Processes() { std::filesystem::remove_all(folder_); }

  template <typename Body>
  void run(Body body) {
    for (int r = 0; r < world_size_; ++r) {
      const pid_t pid = fork();
      if (pid == 0) {
        check::failures = 0;
        body(store_, r);
        std::_Exit(check::failures == 0 ? 0 : 1);
      }
      pids_.push_back(pid);
    }
    for (const pid_t pid : pids_) {
      int status = 0;
      waitpid(pid, &status, 0);
      statuses.push_back(status);
    }
  }

  std::vector<int> statuses;

 private:
  const int world_size_;
  std::filesystem::path folder_;
  std::shared_ptr<ranks::FileStore> store_;
  std::vector<pid_t> pids_;
};

// All ranks are there when it returns. Connections are made meanwhile, if there is an engine.
void meet(ringcomm::Store& store, const std::string& where, int world_size, Engine* engine) {
  store.add(where, 1);
  while (store.add(where, 0) < world_size) {
    if (engine != nullptr) engine->progress();
    std::this_thread::sleep_for(1ms);
  }
}

TEST(contract_between_processes) {
  for (const contract::Check& check : contract::kChecks) {
    Processes processes(check.world_size);
    processes.run([&](const std::shared_ptr<ringcomm::Store>& store, int r) {
      const auto engine = make_ucx_engine(store, r, check.world_size);
      Rank rank(*engine, r, check.world_size);
      contract::run(check, rank);
      meet(*store, "end", check.world_size, nullptr);
    });
    for (const int status : processes.statuses) CHECK_WITH(status == 0, std::string(check.name));
  }
}

TEST(a_process_is_killed) {
  Processes processes(3);
  processes.run([&](const std::shared_ptr<ringcomm::Store>& store, int r) {
    const auto engine = make_ucx_engine(store, r, 3);
    if (r == 0) {
      contract::Message word;
      word.bytes.resize(1);
      engine->send(1, {0, 0}, word.bytes, word.request);
      CHECK(contract::wait(*engine, word.request));
      contract::lost_peer(*engine, 0, 1, [&] { meet(*store, "ready", 3, engine.get()); });
      return;
    }
    if (r == 2) {  // has only waited for it
      contract::Message never;
      never.bytes.resize(1);
      engine->recv(1, {0, 0}, never.bytes, never.request);
      while (!engine->flushed()) engine->progress();
      meet(*store, "ready", 3, engine.get());
      CHECK(!contract::wait(*engine, never.request));
      CHECK(!engine->failure(1).empty());
      return;
    }
    contract::Message word;
    word.bytes.resize(1);
    engine->recv(0, {0, 0}, word.bytes, word.request);
    CHECK(contract::wait(*engine, word.request));
    meet(*store, "ready", 3, engine.get());
    kill(getpid(), SIGKILL);
  });
  CHECK_EQ(processes.statuses[0], 0);
  CHECK(WIFSIGNALED(processes.statuses[1]));
  CHECK_EQ(processes.statuses[2], 0);
}

// What was sent and flushed arrives, though its sender has gone, and no thread looked before.
TEST(flushed_and_gone) {
  Processes processes(2);
  processes.run([&](const std::shared_ptr<ringcomm::Store>& store, int r) {
    auto engine = make_ucx_engine(store, r, 2);
    Rank rank(*engine, r, 2);
    rank.meet(1 - r);
    meet(*store, "connected", 2, engine.get());
    if (r == 0) {
      for (std::uint64_t n = 0; n < 10; ++n) {
        CHECK(contract::wait(*engine, rank.send(1, {0, n}, 1000).request));
      }
      while (!engine->flushed()) engine->progress();
      engine.reset();
      meet(*store, "gone", 2, nullptr);
    } else {
      std::vector<contract::Message*> receives;
      for (std::uint64_t n = 0; n < 10; ++n) receives.push_back(&rank.recv(0, {0, n}, 1000));
      meet(*store, "gone", 2, nullptr);
      for (std::uint64_t n = 0; n < 10; ++n) rank.expect(*receives[n], 0, {0, n}, 1000);
    }
  });
  for (const int status : processes.statuses) CHECK_EQ(status, 0);
}

// It has left an address, and is not there.
TEST(killed_before_it_is_connected) {
  Processes processes(2);
  processes.run([&](const std::shared_ptr<ringcomm::Store>& store, int r) {
    const auto engine = make_ucx_engine(store, r, 2);
    meet(*store, "ready", 2, nullptr);
    if (r == 1) kill(getpid(), SIGKILL);
    std::this_thread::sleep_for(100ms);
    contract::lost_peer(*engine, 0, 1, [] {});
  });
  CHECK_EQ(processes.statuses[0], 0);
}

// From here on UCX is loaded in this process.
TEST(contract_between_threads) {
  for (const contract::Check& check : contract::kChecks) {
    const auto store = std::make_shared<ranks::MemoryStore>();
    std::vector<std::unique_ptr<Engine>> engines(check.world_size);
    ranks::on_threads(check.world_size, [&](int r) {
      engines[r] = make_ucx_engine(store, r, check.world_size);
      Rank rank(*engines[r], r, check.world_size);
      contract::run(check, rank);
    });
    if (::check::failures > 0) std::cout << "in " << check.name << std::endl;
  }
}

TEST(an_engine_goes) {
  const auto store = std::make_shared<ranks::MemoryStore>();
  auto one = make_ucx_engine(store, 0, 2), other = make_ucx_engine(store, 1, 2);
  contract::lost_peer(*one, 0, 1, [&] { other.reset(); });
}

// A thread that waits for it would wait without end, and with it all others that use the engine.
TEST(a_store_that_does_not_answer) {
  struct Silent : ranks::MemoryStore {
    std::optional<std::string> find(const std::string& key) override {
      std::this_thread::sleep_for(3s);
      return MemoryStore::find(key);
    }
  };
  const auto engine = make_ucx_engine(std::make_shared<Silent>(), 0, 2);
  contract::Message never;
  const auto start = std::chrono::steady_clock::now();
  engine->recv(1, {0, 0}, never.bytes, never.request);
  for (int i = 0; i < 10; ++i) {
    engine->progress();
    engine->sleep(1ms);
  }
  CHECK_EQ(engine->failure(1), "");
  engine->cancel(never.request);
  CHECK(never.request.failed());
  CHECK(std::chrono::steady_clock::now() - start < 2s);
}

TEST(another_engine) {
  const auto store = std::make_shared<ranks::MemoryStore>();
  const auto one = make_ucx_engine(store, 0, 2);
  ringcomm::links::publish_address(*store, 1, "gloo", "");
  contract::Message receive;
  one->recv(1, {0, 0}, receive.bytes, receive.request);
  CHECK(!contract::wait(*one, receive.request));
  CHECK_CONTAINS(one->failure(1), "it uses gloo between hosts, and this rank ucx");
}

TEST(pending_at_the_end) {
  const auto store = std::make_shared<ranks::MemoryStore>();
  contract::pending_at_the_end(make_ucx_engine(store, 0, 2), 0, 1);  // which never came
  const auto other = make_ucx_engine(store, 2, 3);
  contract::pending_at_the_end(make_ucx_engine(store, 0, 3), 0, 2);
}

// What is still under way is not written where a cancelled receive was.
TEST(cancelled_half_way) {
  const auto store = std::make_shared<ranks::MemoryStore>();
  const auto one = make_ucx_engine(store, 0, 2), other = make_ucx_engine(store, 1, 2);
  contract::Message send, receive;
  send.bytes.resize(64 << 20, std::byte{1});
  receive.bytes.resize(64 << 20);
  one->send(1, {0, 0}, send.bytes, send.request);
  other->recv(0, {0, 0}, receive.bytes, receive.request);
  while (receive.bytes.front() != std::byte{1}) one->progress(), other->progress();
  CHECK(receive.request.pending());
  other->cancel(receive.request);
  CHECK(receive.request.failed());
  std::fill(receive.bytes.begin(), receive.bytes.end(), std::byte{2});
  for (int i = 0; i < 1000; ++i) one->progress(), other->progress();
  CHECK_EQ(std::count(receive.bytes.begin(), receive.bytes.end(), std::byte{1}), 0);
  CHECK_CONTAINS(other->failure(0), "cancelled");
}

// Its receiver has said nothing.
TEST(what_goes_out_at_once) {
  const auto store = std::make_shared<ranks::MemoryStore>();
  const auto one = make_ucx_engine(store, 0, 2), other = make_ucx_engine(store, 1, 2);
  Rank rank(*one, 0, 2);
  contract::Message& slice = rank.send(1, {0, 0}, ringcomm::links::kOneShot);
  contract::Message& longer = rank.send(1, {0, 1}, ringcomm::links::kOneShot + 1);
  contract::Message word;  // by which they have met
  word.bytes.resize(1);
  other->recv(0, {0, 2}, word.bytes, word.request);
  rank.send(1, {0, 2}, 1);
  const auto end = std::chrono::steady_clock::now() + contract::kPatience;
  while ((slice.request.pending() || word.request.pending()) &&
         std::chrono::steady_clock::now() < end) {
    one->progress(), other->progress();
  }
  CHECK(slice.request.done() && word.request.done());
  CHECK(longer.request.pending());
  one->cancel(longer.request);
}

TEST(cancelled_send) {
  const auto store = std::make_shared<ranks::MemoryStore>();
  const auto one = make_ucx_engine(store, 0, 2), other = make_ucx_engine(store, 1, 2);
  Rank rank(*one, 0, 2);
  contract::Message& send = rank.send(1, {0, 0}, contract::kLarge);
  contract::Message& receive = rank.recv(1, {0, 0}, 10);
  contract::Message last;  // when this has come, the one before it is with UCX
  last.bytes.resize(1);
  rank.send(1, {0, 1}, 1);
  other->recv(0, {0, 1}, last.bytes, last.request);
  while (last.request.pending()) one->progress(), other->progress();
  CHECK(send.request.pending());
  one->cancel(send.request);
  CHECK(send.request.failed());
  CHECK_CONTAINS(one->failure(1), "cancelled");
  CHECK(!contract::wait(*one, receive.request));
}

}  // namespace
