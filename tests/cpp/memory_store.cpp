#include "memory_store.h"

#include <exception>
#include <thread>

#include "fault_points.h"

namespace ranks {

ringcomm::GroupConfig group_config(int rank, int world_size, const std::string& group) {
  return {
      .rank = rank, .world_size = world_size, .timeout = kPatience, .members = {.group = group}};
}

ringcomm::GroupConfig group_config(int rank, const Placement& placement, const std::string& group) {
  ringcomm::GroupConfig config =
      group_config(rank, static_cast<int>(placement.host_of.size()), group);
  if (placement.num_hosts() > 1) {
    config.host = "host " + std::to_string(placement.host_of[rank]);
  }
  return config;
}

MemoryStore::MemoryStore() = default;
MemoryStore::~MemoryStore() = default;

void MemoryStore::set(const std::string& key, const std::string& value) {
  faults::may_fail();
  const faults::Spared spared;
  if (on_set) on_set(key, value);
  std::lock_guard lock(mutex_);
  values_[key] = value;
}

std::optional<std::string> MemoryStore::find(const std::string& key) {
  std::lock_guard lock(mutex_);
  const auto it = values_.find(key);
  return it == values_.end() ? std::nullopt : std::optional(it->second);
}

std::string MemoryStore::set_once(const std::string& key, const std::string& value) {
  faults::may_fail();
  const faults::Spared spared;
  std::lock_guard lock(mutex_);
  return values_.try_emplace(key, value).first->second;
}

std::int64_t MemoryStore::add(const std::string& key, std::int64_t amount) {
  faults::may_fail();
  const faults::Spared spared;
  std::lock_guard lock(mutex_);
  return counters_[key] += amount;
}

bool MemoryStore::has(const std::string& key) {
  std::lock_guard lock(mutex_);
  return values_.contains(key) || counters_.contains(key);
}

bool MemoryStore::erase(const std::string& key) {
  std::lock_guard lock(mutex_);
  return values_.erase(key) + counters_.erase(key) > 0;
}

std::vector<std::string> MemoryStore::keys() {
  std::lock_guard lock(mutex_);
  std::vector<std::string> keys;
  for (const auto& [key, value] : values_) keys.push_back(key);
  for (const auto& [key, value] : counters_) keys.push_back(key);
  return keys;
}

void on_threads(int world_size, const std::function<void(int rank)>& body) {
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

Communicators make_group(const Placement& placement, const std::string& algorithm) {
  MemoryStore store;
  Communicators group(placement.host_of.size());
  on_threads(static_cast<int>(group.size()), [&](int r) {
    group[r] = std::make_unique<Communicator>(store, group_config(r, placement),
                                              Selection::named(algorithm));
  });
  return group;
}

Communicators make_group(int world_size, const std::string& algorithm) {
  return make_group(Placement::one_host(world_size), algorithm);
}

void with_group(const Placement& placement, const std::string& algorithm,
                const std::function<void(Communicator&)>& body) {
  MemoryStore store;
  on_threads(static_cast<int>(placement.host_of.size()), [&](int r) {
    Communicator communicator(store, group_config(r, placement), Selection::named(algorithm));
    body(communicator);
  });
}

void with_group(int world_size, const std::string& algorithm,
                const std::function<void(Communicator&)>& body) {
  with_group(Placement::one_host(world_size), algorithm, body);
}

}  // namespace ranks
