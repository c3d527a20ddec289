// Stores that report what they see, and stores as they are seen from elsewhere.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/process.h"
#include "memory_store.h"
#include "setup/record.h"

namespace ranks {

// A store that sees where the shared memory is said to be: a path, be it of /proc or /dev/shm.
struct WatchedStore : MemoryStore {
  WatchedStore() {
    on_set = [this](const std::string& key, const std::string& value) {
      if (!key.starts_with("shown/")) return;
      std::string path = value.substr(0, value.find_first_of(" \n"));
      if (path.starts_with("/ringcomm-")) path = "/dev/shm" + path;
      if (on_path) on_path(path);
      const std::lock_guard lock(paths_mutex);  // the first of every host shows one
      paths.push_back(path);
    };
  }
  std::function<void(const std::string& path)> on_path;
  std::vector<std::string> paths;  // in the order they were set
  std::mutex paths_mutex;
};

// What one rank sees of a store, changed on the way.
struct ChangedStore : ringcomm::Store {
  using Change = std::function<void(const std::string& key, std::string& value)>;

  ChangedStore(ringcomm::Store& store, Change change) : store(store), change(std::move(change)) {}
  void set(const std::string& key, const std::string& value) override { store.set(key, value); }
  std::optional<std::string> find(const std::string& key) override {
    std::optional<std::string> value = store.find(key);
    if (value) change(key, *value);
    return value;
  }
  std::string set_once(const std::string& key, const std::string& value) override {
    return store.set_once(key, value);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return store.add(key, amount);
  }
  bool has(const std::string& key) override { return store.has(key); }
  bool erase(const std::string& key) override { return store.erase(key); }

  ringcomm::Store& store;
  const Change change;
};

// As a rank in a PID namespace of its own would, looks at another process's file.
inline void look_elsewhere(const std::string&, std::string& value) {
  const std::size_t at = value.find("/proc/");
  if (at != std::string::npos) value.replace(at, value.find("/fd/") - at, "/proc/1");
}

// As a rank sees it in a container, of several on one machine, which may be a copy of others, with
// its boot id. The containers of a machine have process numbers of their own, and one /dev/shm.
struct ContainerStore : ChangedStore {
  ContainerStore(ringcomm::Store& store, int machine, int container)
      : ChangedStore(store,
                     [this](const std::string& key, std::string& value) {
                       if (key.starts_with("shown/")) look(value);
                     }),
        machine(std::to_string(machine)),
        container(std::to_string(container)) {}

  void set(const std::string& key, const std::string& value) override {
    ChangedStore::set(key,
                      key.starts_with("shown/") ? machine + " " + container + " " + value : value);
  }
  void look(std::string& value) const {
    const std::size_t first = value.find(' '), second = value.find(' ', first + 1);
    const std::string its_machine = value.substr(0, first);
    const std::string its_container = value.substr(first + 1, second - first - 1);
    value = value.substr(second + 1);
    const bool is_seen =
        its_machine == machine && (its_container == container || !value.starts_with("/proc/"));
    if (!is_seen) value.replace(value.find('\n') - 4, 4, "none");
  }

  const std::string machine, container;
};

// As a rank sees it under the kernel of that number: what others say of their kernels differs.
struct KernelStore : ChangedStore {
  KernelStore(ringcomm::Store& store, int kernel)
      : ChangedStore(store,
                     [this](const std::string&, std::string& value) {
                       replace(value, ringcomm::boot_id() + mark, ringcomm::boot_id());
                     }),
        mark("-kernel-" + std::to_string(kernel)) {}

  void set(const std::string& key, const std::string& value) override {
    std::string marked = value;
    replace(marked, ringcomm::boot_id(), ringcomm::boot_id() + mark);
    ChangedStore::set(key, marked);
  }
  static void replace(std::string& text, const std::string& from, const std::string& to) {
    const std::string field = (ringcomm::RecordWriter() << from).text();
    const std::size_t at = text.find(field);
    if (at != std::string::npos)
      text.replace(at, field.size(), (ringcomm::RecordWriter() << to).text());
  }

  const std::string mark;
};

// As ranks see it whose kernel's boot id is hidden.
struct HiddenKernelStore : ChangedStore {
  explicit HiddenKernelStore(ringcomm::Store& store)
      : ChangedStore(store, [](const std::string&, std::string&) {}) {}

  void set(const std::string& key, const std::string& value) override {
    std::string hidden = value;
    KernelStore::replace(hidden, ringcomm::boot_id(), "");
    ChangedStore::set(key, hidden);
  }
};

}  // namespace ranks
