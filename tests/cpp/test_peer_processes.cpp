// Memory of another process, read by the kernel.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <vector>

#include "check.h"
#include "shm/peer_memory.h"

namespace {

using ringcomm::Process;
using ringcomm::shm::PeerProcesses;

constexpr std::size_t kNbytes = 3'000'001;

std::uint64_t address(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

// A child that has other values at this process's addresses, until it is killed.
struct Child {
  explicit Child(std::vector<std::byte>& data) {
    int ready[2];
    CHECK(pipe(ready) == 0);
    pid = fork();
    if (pid == 0) {
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i % 251);
      CHECK(write(ready[1], "x", 1) == 1);
      for (;;) pause();
    }
    char byte;
    CHECK(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
    close(ready[1]);
  }
  ~Child() { end(); }
  void end() {
    if (pid == 0) return;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    pid = 0;
  }
  Process process() const {
    Process process = Process::self();
    process.pid = pid;
    process.start_time = 0;
    return process;
  }
  pid_t pid = 0;
};

TEST(another_processes_memory_is_read) {
  std::vector<std::byte> data(kNbytes), found(kNbytes);
  Child child(data);
  PeerProcesses peers(2);
  CHECK(!peers.has_learnt(1) && !peers.knows(1));
  peers.learn(1, child.process(), address(data.data()));
  CHECK(peers.has_learnt(1) && peers.knows(1));
  CHECK_EQ(peers.read(1, address(data.data()) + 1, found.data(), kNbytes - 1), 0);
  bool is_the_childs = true;
  for (std::size_t i = 0; i + 1 < kNbytes; ++i) {
    is_the_childs = is_the_childs && found[i] == static_cast<std::byte>((i + 1) % 251);
  }
  CHECK(is_the_childs);
}

TEST(what_cannot_be_read_says_why) {
  std::vector<std::byte> data(kNbytes), found(kNbytes);
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  auto* const memory = static_cast<std::byte*>(
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  CHECK(mprotect(memory + page, page, PROT_NONE) == 0);
  Child child(data);
  PeerProcesses peers(2);
  peers.learn(1, child.process(), address(data.data()));
  CHECK_EQ(peers.read(1, address(memory), found.data(), page), 0);
  CHECK_EQ(peers.read(1, address(memory), found.data(), page + 1), EFAULT);
  child.end();
  CHECK_EQ(peers.read(1, address(data.data()), found.data(), 100), ESRCH);
  munmap(memory, 2 * page);
}

TEST(a_process_knows_what_of_it_can_be_read) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  auto* const memory = static_cast<std::byte*>(
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  CHECK(mprotect(memory + page, page, PROT_NONE) == 0);
  CHECK(PeerProcesses::can_be_read(address(memory)));
  CHECK(!PeerProcesses::can_be_read(address(memory + page)));
  munmap(memory, 2 * page);
}

TEST(a_process_that_cannot_be_reached_stays_unknown) {
  std::vector<std::byte> data(100);
  Child child(data);
  const auto knows = [&](const Process& process, std::uint64_t at) {
    PeerProcesses peers(2);
    peers.learn(1, process, at);
    CHECK(peers.has_learnt(1));
    return peers.knows(1);
  };
  CHECK(knows(child.process(), address(data.data())));
  CHECK(!knows(child.process(), 1));  // nothing is there
  Process elsewhere = child.process();
  ++elsewhere.pid_namespace;
  CHECK(!knows(elsewhere, address(data.data())));
  Process another = child.process();
  another.start_time = Process::self().start_time + 1'000'000;
  CHECK(!knows(another, address(data.data())));
  CHECK(!knows({}, address(data.data())));
  child.end();
  CHECK(!knows(child.process(), address(data.data())));
}

}  // namespace
