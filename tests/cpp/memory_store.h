// A rendezvous store in memory, and groups whose ranks are threads of this process.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "communicator.h"

namespace ranks {

using ringcomm::Algorithm;
using ringcomm::Communicator;
using Timeout = Communicator::Timeout;

// Long enough for the busiest machine: a test that needs it has failed.
inline constexpr Timeout kPatience = std::chrono::seconds(60);

class MemoryStore : public ringcomm::Store {
 public:
  // Called for every set(), before the value can be seen.
  std::function<void(const std::string& key, const std::string& value)> on_set;

  void set(const std::string& key, const std::string& value) override {
    if (on_set) on_set(key, value);
    std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }

  std::string get(const std::string& key, Timeout timeout) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [&] { return values_.contains(key); })) {
      throw std::runtime_error("store: no key " + key + " in time");
    }
    return values_.at(key);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

// Runs body(rank) on a thread per rank; what the first of them threw is thrown again.
inline void on_threads(int world_size, const std::function<void(int rank)>& body) {
  std::vector<std::exception_ptr> errors(world_size);
  std::vector<std::thread> threads;
  for (int r = 0; r < world_size; ++r) {
    threads.emplace_back([&, r] {
      try {
        body(r);
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

inline std::vector<std::unique_ptr<Communicator>> make_group(
    int world_size, Algorithm algorithm = Algorithm::kAuto) {
  MemoryStore store;
  std::vector<std::unique_ptr<Communicator>> group(world_size);
  on_threads(world_size, [&](int r) {
    group[r] = std::make_unique<Communicator>(store, r, world_size, algorithm, kPatience);
  });
  return group;
}

// All ranks of a new group as threads; body gets each rank's communicator.
inline void with_group(int world_size, Algorithm algorithm,
                       const std::function<void(Communicator&)>& body) {
  MemoryStore store;
  on_threads(world_size, [&](int r) {
    Communicator communicator(store, r, world_size, algorithm, kPatience);
    body(communicator);
  });
}

}  // namespace ranks
