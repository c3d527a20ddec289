// A file in memory that the processes of one host can map together.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace ringcomm::shm {

// kAnonymous: a memfd. It has no name that could outlive its processes, counts as their memory and
// not against the size of /dev/shm, and is opened by others through /proc/PID/fd of the one that
// made it, which takes the same PID namespace and the right to look there.
// kNamed: a file in /dev/shm, which must be unlinked once all have opened it.
class File {
 public:
  enum class Kind { kAnonymous, kNamed };

  // Null: this host makes no files of this kind for us. Throws Error (kSystem).
  static std::optional<File> make(Kind kind);
  // Null: the file at this address is out of reach, or another user's. Throws Error (kSystem).
  static std::optional<File> open(const std::string& address);

  File() = default;
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  // Where other processes find it.
  const std::string& address() const { return address_; }
  Kind kind() const { return kind_; }
  int descriptor() const { return descriptor_; }

  // Takes its name away, if it has one and was made here.
  void unlink();

  static bool is_named(const std::string& address);
  // Takes a name away that another process has made.
  static void unlink(const std::string& address);

  // Takes memory for these bytes, so that touching them cannot fail. Returns 0 or an errno.
  int allocate(std::size_t offset, std::size_t nbytes);
  // Locks that place, which takes no memory, for as long as this object and this process live and
  // the process executes no other program; what it forks may keep the lock. False: this system has
  // no such locks.
  bool lock(int place);
  // Whether another object, of any process, has locked it. Where that cannot be found out, it has.
  bool is_locked(int place) const;

  // Gives the memory of whole pages back, which then read as zeros. False: it stays.
  bool release(std::size_t offset, std::size_t nbytes);

 private:
  File(Kind kind, std::string address, int descriptor)
      : kind_(kind), address_(std::move(address)), descriptor_(descriptor) {}

  Kind kind_ = Kind::kAnonymous;
  std::string address_;
  int descriptor_ = -1;
  bool linked_ = false;  // and it is ours to unlink
};

// "posix_fallocate(...) failed: No space left on device (errno 28)"
std::string describe_failure(const std::string& call, int code);

}  // namespace ringcomm::shm
