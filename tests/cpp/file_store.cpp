#include "file_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>
#include <utility>

namespace ranks {
namespace {

// As long as it lives, and its process.
struct Lock {
  explicit Lock(const std::filesystem::path& path)
      : file(open(path.c_str(), O_CREAT | O_RDWR, 0600)) {
    flock(file, LOCK_EX);
  }
  ~Lock() { close(file); }
  const int file;
};

}  // namespace

FileStore::FileStore(std::filesystem::path folder) : folder_(std::move(folder)) {}
FileStore::~FileStore() = default;

void FileStore::set(const std::string& key, const std::string& value) {
  static std::atomic<int> number{0};  // of this process's threads
  const std::filesystem::path written =
      path(key + "." + std::to_string(getpid()) + "." + std::to_string(number++));
  std::ofstream(written) << value;
  std::filesystem::rename(written, path(key));
}

std::optional<std::string> FileStore::find(const std::string& key) {
  std::ifstream file(path(key));
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

std::string FileStore::set_once(const std::string& key, const std::string& value) {
  const Lock lock(path("lock of " + key));
  const std::optional<std::string> known = find(key);
  if (!known) set(key, value);
  return known.value_or(value);
}

std::int64_t FileStore::add(const std::string& key, std::int64_t amount) {
  const Lock lock(path("lock of " + key));
  const std::int64_t sum = std::stoll(find(key).value_or("0")) + amount;
  set(key, std::to_string(sum));
  return sum;
}

std::filesystem::path FileStore::path(std::string key) const {
  std::replace(key.begin(), key.end(), '/', '-');
  return folder_ / key;
}

}  // namespace ranks
