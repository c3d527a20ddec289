#include "shm/memory_file.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "core/status.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif

namespace ringcomm::shm {
namespace {

constexpr char kProc[] = "/proc/";

[[noreturn]] void fail(const std::string& call, int code) {
  throw Error(ErrorKind::kSystem, describe_failure(call, code));
}

// 128 random bits: a rank that finds a file of this name has found the right one.
std::string random_name() {
  std::random_device device;
  std::string name = "ringcomm-";
  for (int i = 0; i < 4; ++i) {
    static constexpr char kDigits[] = "0123456789abcdef";
    for (unsigned bits = device(), d = 0; d < 8; ++d, bits >>= 4) name += kDigits[bits & 15];
  }
  return name;
}

// -1: this kernel has none, or a sandbox forbids it. Kernels before 6.3 do not know the flag that
// those set to refuse executable memory insist on.
int make_memfd(const std::string& name) {
  const int descriptor = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_NOEXEC_SEAL);
  return descriptor >= 0 || errno != EINVAL ? descriptor : memfd_create(name.c_str(), MFD_CLOEXEC);
}

// What an entry of /proc/PID/fd leads to; "" if that cannot be seen.
std::string target_of(const std::string& link) {
  char target[PATH_MAX];
  const ssize_t length = readlink(link.c_str(), target, sizeof(target));
  return length < 0 ? "" : std::string(target, static_cast<std::size_t>(length));
}

// The owner of a file could have put anything into it.
bool is_own(int descriptor) {
  struct stat status {};
  return fstat(descriptor, &status) == 0 && status.st_uid == geteuid();
}

// What is wrong with this process, and not with the file.
bool has_too_many_files(int code) { return code == EMFILE || code == ENFILE || code == ENOMEM; }

struct flock lock_of(int place) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = place;
  lock.l_len = 1;
  return lock;
}

std::string own_link(int descriptor) {
  return kProc + std::string("self/fd/") + std::to_string(descriptor);
}

}  // namespace

std::string describe_failure(const std::string& call, int code) {
  return call + " failed: " + std::strerror(code) + " (errno " + std::to_string(code) + ")";
}

std::optional<File> File::make(Kind kind) {
  const std::string name = random_name();
  if (kind == Kind::kAnonymous) {
    const int descriptor = make_memfd(name);
    if (descriptor < 0) return std::nullopt;
    File file(kind,
              kProc + std::to_string(getpid()) + "/fd/" + std::to_string(descriptor) + " " + name,
              descriptor);
    if (fchmod(descriptor, 0600) != 0) fail("fchmod(" + name + ", 0600)", errno);
    return file;
  }
  const std::string path = "/" + name;
  const int descriptor = shm_open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor < 0) fail("shm_open(" + path + ", O_CREAT)", errno);
  File file(kind, path, descriptor);
  file.linked_ = true;
  return file;
}

// In another PID namespace the number may belong to another process, and its files must not be
// opened. So the name is checked first, and again once the file is open, because numbers are
// reused.
std::optional<File> File::open(const std::string& address) {
  File file;
  if (is_named(address)) {
    file = File(Kind::kNamed, address, shm_open(address.c_str(), O_RDWR | O_CLOEXEC, 0600));
    if (file.descriptor_ < 0 && has_too_many_files(errno)) fail("shm_open(" + address + ")", errno);
  } else {
    const std::size_t space = address.find(' ');
    const std::string link = address.substr(0, space);
    const std::string meant = "/memfd:" + address.substr(space + 1) + " (deleted)";
    if (target_of(link) != meant) return std::nullopt;
    file = File(Kind::kAnonymous, address, ::open(link.c_str(), O_RDWR | O_CLOEXEC));
    if (file.descriptor_ < 0 && has_too_many_files(errno)) fail("open(" + address + ")", errno);
    if (file.descriptor_ >= 0 && target_of(own_link(file.descriptor_)) != meant)
      return std::nullopt;
  }
  if (file.descriptor_ < 0 || !is_own(file.descriptor_)) return std::nullopt;
  return file;
}

File::~File() {
  unlink();
  if (descriptor_ >= 0) close(descriptor_);
}

File::File(File&& other) noexcept { *this = std::move(other); }

File& File::operator=(File&& other) noexcept {
  std::swap(kind_, other.kind_);
  std::swap(address_, other.address_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(linked_, other.linked_);
  return *this;
}

bool File::is_named(const std::string& address) { return !address.starts_with(kProc); }

void File::unlink(const std::string& address) { shm_unlink(address.c_str()); }

void File::unlink() {
  if (std::exchange(linked_, false)) shm_unlink(address_.c_str());
}

int File::allocate(std::size_t offset, std::size_t nbytes) {
  int code;
  do {
    code = posix_fallocate(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(nbytes));
  } while (code == EINTR);
  return code;
}

// Locks of open files: those of processes would end as soon as the process closes any descriptor of
// the file, and it may hold another rank's. Descriptors are closed when a program is executed.
bool File::lock(int place) {
  struct flock lock = lock_of(place);
  return fcntl(descriptor_, F_OFD_SETLK, &lock) == 0;
}

bool File::is_locked(int place) const {
  struct flock lock = lock_of(place);
  return fcntl(descriptor_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

bool File::release(std::size_t offset, std::size_t nbytes) {
  return fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                   static_cast<off_t>(offset), static_cast<off_t>(nbytes)) == 0;
}

}  // namespace ringcomm::shm
