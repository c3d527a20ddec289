#include "shm/usage.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <numeric>
#include <sstream>
#include <utility>
#include <vector>

namespace ringcomm::shm {
namespace {

constexpr std::size_t kMostListed = 8;

// Never destroyed: groups may outlive the statics of other files.
struct Registry {
  std::mutex mutex;
  std::vector<const Usage*> all;
};
Registry& registry() {
  static auto& registry = *new Registry;
  return registry;
}

// A line "MemAvailable:  123 kB".
std::size_t available_nbytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    std::size_t kib = 0;
    if (words >> key >> kib && key == "MemAvailable:") return kib * 1024;
  }
  return SIZE_MAX;
}

// What the process's cgroup leaves it, if it is limited; a file of "max" or digits.
std::size_t left_in_cgroup() {
  std::size_t limit = 0, used = 0;
  if (!(std::ifstream("/sys/fs/cgroup/memory.max") >> limit)) return SIZE_MAX;
  if (!(std::ifstream("/sys/fs/cgroup/memory.current") >> used)) return SIZE_MAX;
  return limit - std::min(limit, used);
}

std::string describe_free(File::Kind kind) {
  if (kind == File::Kind::kNamed) {
    struct statvfs shm {};
    if (statvfs("/dev/shm", &shm) != 0) return "nobody knows how much of /dev/shm";
    const std::size_t block = shm.f_frsize;
    return describe_nbytes(shm.f_bavail * block) + " of /dev/shm's " +
           describe_nbytes(shm.f_blocks * block);
  }
  const std::size_t nbytes = std::min(available_nbytes(), left_in_cgroup());
  return nbytes == SIZE_MAX ? "nobody knows how much memory"
                            : describe_nbytes(nbytes) + " of memory";
}

std::string remedy(File::Kind kind, int code) {
  const std::string less =
      "destroy groups that are not used any more, or let fewer ranks share this host.";
  if (code == EFBIG) return "Raise the limit on the size of files (ulimit -f).";
  if (kind == File::Kind::kNamed) {
    return "Give /dev/shm more (mount -o remount,size=1G /dev/shm; with docker run, --shm-size=1g "
           "or --ipc=host), delete what other jobs left there, " +
           less;
  }
  return "Give the job or its container more memory (docker run --memory, srun --mem), " + less;
}

}  // namespace

std::string describe_nbytes(std::size_t nbytes) {
  char text[32];
  if (nbytes < (1 << 20)) {
    std::snprintf(text, sizeof(text), "%zu KiB", (nbytes + 1023) / 1024);
  } else {
    std::snprintf(text, sizeof(text), "%.1f MiB", static_cast<double>(nbytes) / (1 << 20));
  }
  return text;
}

Usage::Usage(std::string group) : group_(std::move(group)) {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  known.all.push_back(this);
}

Usage::~Usage() {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  std::erase(known.all, this);
}

std::size_t Usage::nbytes() const {
  return std::accumulate(held_.begin(), held_.end(), std::size_t{0});
}

std::string Usage::describe() const {
  std::string areas;
  for (int a = 0; a < kNumAreas; ++a) {
    const std::size_t nbytes = held_[static_cast<std::size_t>(a)];
    if (nbytes == 0) continue;
    areas += std::string(areas.empty() ? "" : ", ") + name(static_cast<Area>(a)) + " " +
             describe_nbytes(nbytes);
  }
  return describe_nbytes(nbytes()) + " as " + group_ + (areas.empty() ? "" : " (" + areas + ")");
}

std::string Usage::describe_all() {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  std::vector<std::pair<std::size_t, const Usage*>> sorted;
  std::size_t total = 0;
  for (const Usage* usage : known.all) {
    sorted.emplace_back(usage->nbytes(), usage);
    total += sorted.back().first;
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text = describe_nbytes(total) + " in " + std::to_string(sorted.size()) +
                     (sorted.size() == 1 ? " group" : " groups");
  for (std::size_t i = 0; i < std::min(sorted.size(), kMostListed); ++i) {
    text += (i == 0 ? ": " : "; ") + sorted[i].second->describe();
  }
  if (sorted.size() <= kMostListed) return text;
  return text + "; and " + std::to_string(sorted.size() - kMostListed) + " that hold no more each";
}

Error out_of_memory(const Usage& usage, Area area, std::size_t nbytes, const File& file, int code) {
  return Error(ErrorKind::kSystem,
               usage.group() + ": there is no shared memory for its " + name(area) + ": " +
                   describe_nbytes(nbytes) + " (" + std::to_string(nbytes) + " bytes) needed, " +
                   describe_free(file.kind()) + " free; " +
                   describe_failure("posix_fallocate(" + file.address() + ")", code) +
                   ". This process holds " + Usage::describe_all() + ". " +
                   remedy(file.kind(), code));
}

}  // namespace ringcomm::shm
