// Memory of this process that others can map: for tensors that collectives read and write where
// they are (shm/zero_copy.h).
//
// One file of each process, as large as the machine's memory, so that others map it once and a
// place in it is a number. It is sparse: a page is taken when it is first touched, and counts as
// this process's. What is freed is used again, best fit first, and stays taken until the process
// ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "core/process.h"
#include "shm/memory_file.h"

namespace ringcomm::shm {

class Arena {
 public:
  // This process's, made when it is first wanted; null if none can be. A child by fork() gets
  // its own: what it has inherited is its parent's.
  static Arena* of_this_process();
  // Null if there is none yet.
  static Arena* existing();

  // Memory that is aligned to a cache line, and that no other caller has, even for 0 bytes; null:
  // there is no room. Any thread may call these functions.
  void* allocate(std::size_t nbytes);
  // False: it lies in no arena. Memory that a forked child has inherited is left alone.
  static bool free(void* data);

  // Where these bytes lie in the file, if they do.
  std::optional<std::uint64_t> find(const void* data, std::size_t nbytes) const;
  // File::address
  const std::string& file() const { return file_.address(); }

 private:
  static Arena* make(Arena* inherited);
  Arena(File file, std::byte* base, std::size_t nbytes, Arena* inherited);
  ~Arena();

  void insert_free(std::size_t at, std::size_t nbytes);
  void erase_free(std::map<std::size_t, std::size_t>::iterator range);
  void release(std::size_t at);

  const ForkGuard fork_guard_;
  const File file_;
  std::byte* const base_;
  const std::size_t nbytes_;
  Arena* const inherited_;  // stays mapped, as tensors are in it
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> used_;                  // bytes, by where they begin
  std::map<std::size_t, std::size_t> free_;                  // likewise; no two ranges touch
  std::set<std::pair<std::size_t, std::size_t>> by_nbytes_;  // of free_, and where
};

}  // namespace ringcomm::shm
