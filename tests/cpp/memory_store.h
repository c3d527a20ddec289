// A rendezvous store in memory, and groups whose ranks are threads of this process.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/policy.h"
#include "setup/store.h"
#include "shm/communicator.h"

namespace ranks {

using ringcomm::Communicator;
using ringcomm::Placement;
using ringcomm::Selection;
using Timeout = Communicator::Timeout;

// Long enough for the busiest machine: a test that needs it has failed.
inline constexpr Timeout kPatience = std::chrono::seconds(60);

ringcomm::GroupConfig group_config(int rank, int world_size, const std::string& group = "");

// To a group whose hosts, where it is to have several, are played by names.
ringcomm::GroupConfig group_config(int rank, const Placement& placement,
                                   const std::string& group = "");

class MemoryStore : public ringcomm::Store {
 public:
  MemoryStore();
  ~MemoryStore() override;

  // Called for every set(), before the value can be seen.
  std::function<void(const std::string& key, const std::string& value)> on_set;

  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> find(const std::string& key) override;
  std::string set_once(const std::string& key, const std::string& value) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  bool has(const std::string& key) override;
  bool erase(const std::string& key) override;
  // What stands in it, counters, too.
  std::vector<std::string> keys();

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::int64_t> counters_;
};

// Runs body(rank) on a thread per rank; what the first of them threw is thrown again.
void on_threads(int world_size, const std::function<void(int rank)>& body);

using Communicators = std::vector<std::unique_ptr<Communicator>>;  // by rank

Communicators make_group(const Placement& placement, const std::string& algorithm = "auto");
Communicators make_group(int world_size, const std::string& algorithm = "auto");

// All ranks of a new group as threads; body gets each rank's communicator.
void with_group(const Placement& placement, const std::string& algorithm,
                const std::function<void(Communicator&)>& body);
void with_group(int world_size, const std::string& algorithm,
                const std::function<void(Communicator&)>& body);

}  // namespace ranks
