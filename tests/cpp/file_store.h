// A rendezvous store of processes: a file for each key.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "core/store.h"

namespace ranks {

class FileStore : public ringcomm::Store {
 public:
  explicit FileStore(std::filesystem::path folder) : folder_(std::move(folder)) {}

  void set(const std::string& key, const std::string& value) override {
    static std::atomic<int> number{0};  // of this process's threads
    const std::filesystem::path written =
        path(key + "." + std::to_string(getpid()) + "." + std::to_string(number++));
    std::ofstream(written) << value;
    std::filesystem::rename(written, path(key));
  }

  std::optional<std::string> find(const std::string& key) override {
    std::ifstream file(path(key));
    if (!file) return std::nullopt;
    return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }

  std::string set_once(const std::string& key, const std::string& value) override {
    const Lock lock(path("lock of " + key));
    const std::optional<std::string> known = find(key);
    if (!known) set(key, value);
    return known.value_or(value);
  }

  std::int64_t add(const std::string& key, std::int64_t amount) override {
    const Lock lock(path("lock of " + key));
    const std::int64_t sum = std::stoll(find(key).value_or("0")) + amount;
    set(key, std::to_string(sum));
    return sum;
  }

 private:
  // As long as it lives, and its process.
  struct Lock {
    explicit Lock(const std::filesystem::path& path)
        : file(open(path.c_str(), O_CREAT | O_RDWR, 0600)) {
      flock(file, LOCK_EX);
    }
    ~Lock() { close(file); }
    const int file;
  };

  std::filesystem::path path(std::string key) const {
    std::replace(key.begin(), key.end(), '/', '-');
    return folder_ / key;
  }

  const std::filesystem::path folder_;
};

}  // namespace ranks
