// A rendezvous store in memory, and groups whose ranks are threads of this process.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/selection.h"
#include "shm/communicator.h"

namespace ranks {

using ringcomm::Communicator;
using ringcomm::Placement;
using ringcomm::Selection;
using Timeout = Communicator::Timeout;

// Long enough for the busiest machine: a test that needs it has failed.
inline constexpr Timeout kPatience = std::chrono::seconds(60);

inline ringcomm::Invitation invite(int rank, int world_size, const std::string& group = "") {
  return {
      .rank = rank, .world_size = world_size, .timeout = kPatience, .members = {.group = group}};
}

// To a group whose hosts, where it is to have several, are played by names.
inline ringcomm::Invitation invite(int rank, const Placement& placement,
                                   const std::string& group = "") {
  ringcomm::Invitation invitation = invite(rank, static_cast<int>(placement.host_of.size()), group);
  if (placement.num_hosts() > 1) {
    invitation.host = "host " + std::to_string(placement.host_of[rank]);
  }
  return invitation;
}

class MemoryStore : public ringcomm::Store {
 public:
  // Called for every set(), before the value can be seen.
  std::function<void(const std::string& key, const std::string& value)> on_set;

  void set(const std::string& key, const std::string& value) override {
    if (on_set) on_set(key, value);
    std::lock_guard lock(mutex_);
    values_[key] = value;
  }

  std::optional<std::string> find(const std::string& key) override {
    std::lock_guard lock(mutex_);
    const auto it = values_.find(key);
    return it == values_.end() ? std::nullopt : std::optional(it->second);
  }

  std::string set_once(const std::string& key, const std::string& value) override {
    std::lock_guard lock(mutex_);
    return values_.try_emplace(key, value).first->second;
  }

  std::int64_t add(const std::string& key, std::int64_t amount) override {
    std::lock_guard lock(mutex_);
    return counters_[key] += amount;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::int64_t> counters_;
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
    const Placement& placement, const std::string& algorithm = "auto") {
  MemoryStore store;
  std::vector<std::unique_ptr<Communicator>> group(placement.host_of.size());
  on_threads(static_cast<int>(group.size()), [&](int r) {
    group[r] =
        std::make_unique<Communicator>(store, invite(r, placement), Selection::named(algorithm));
  });
  return group;
}

inline std::vector<std::unique_ptr<Communicator>> make_group(
    int world_size, const std::string& algorithm = "auto") {
  return make_group(Placement::one_host(world_size), algorithm);
}

// All ranks of a new group as threads; body gets each rank's communicator.
inline void with_group(const Placement& placement, const std::string& algorithm,
                       const std::function<void(Communicator&)>& body) {
  MemoryStore store;
  on_threads(static_cast<int>(placement.host_of.size()), [&](int r) {
    Communicator communicator(store, invite(r, placement), Selection::named(algorithm));
    body(communicator);
  });
}

inline void with_group(int world_size, const std::string& algorithm,
                       const std::function<void(Communicator&)>& body) {
  with_group(Placement::one_host(world_size), algorithm, body);
}

}  // namespace ranks
