// Ranks that are threads of one process map the group's segment once each, at different addresses.
// ThreadSanitizer keeps its shadow by address: it would see neither the races between two such
// mappings nor the synchronisation. So in its builds, which are linked with --wrap=mmap and
// --wrap=munmap, all mappings of one file are the same, until the last is unmapped.
#ifdef __SANITIZE_THREAD__

#include <sys/mman.h>
#include <sys/stat.h>

#include <map>
#include <mutex>
#include <utility>

extern "C" {
void* __real_mmap(void* address, std::size_t nbytes, int protection, int flags, int fd, off_t at);
int __real_munmap(void* address, std::size_t nbytes);
}

namespace {

struct Mapping {
  void* address;
  int users;
};

std::mutex mutex;
std::map<std::pair<dev_t, ino_t>, Mapping> mappings;

}  // namespace

extern "C" void* __wrap_mmap(void* address, std::size_t nbytes, int protection, int flags, int fd,
                             off_t at) {
  struct stat file {};
  if (fd < 0 || fstat(fd, &file) != 0) {
    return __real_mmap(address, nbytes, protection, flags, fd, at);
  }
  std::lock_guard lock(mutex);
  const auto [it, is_first] = mappings.try_emplace({file.st_dev, file.st_ino}, Mapping{nullptr, 0});
  if (is_first) it->second.address = __real_mmap(address, nbytes, protection, flags, fd, at);
  ++it->second.users;
  return it->second.address;
}

extern "C" int __wrap_munmap(void* address, std::size_t nbytes) {
  std::lock_guard lock(mutex);
  for (auto it = mappings.begin(); it != mappings.end(); ++it) {
    if (it->second.address != address) continue;
    if (--it->second.users > 0) return 0;
    mappings.erase(it);
    break;
  }
  return __real_munmap(address, nbytes);
}

#endif
