#include "shm/process.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <string>

namespace ringcomm::shm {
namespace {

struct Stat {
  char state = 0;
  std::uint64_t start_time = 0;
};

// Fields 3 (state) and 22 (starttime) of /proc/PID/stat; the name in field 2 may hold anything, so
// counting starts behind its closing parenthesis.
Stat read_stat(std::int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::size_t at = text.rfind(')');
  Stat stat;
  if (at == std::string::npos || at + 2 >= text.size()) return stat;
  stat.state = text[at + 2];
  at += 2;
  for (int field = 3; field < 22 && at != std::string::npos; ++field) {
    at = text.find(' ', at + 1);
  }
  if (at != std::string::npos) stat.start_time = std::strtoull(text.c_str() + at, nullptr, 10);
  return stat;
}

std::uint64_t own_pid_namespace() {
  struct stat file {};
  return stat("/proc/self/ns/pid", &file) == 0 ? file.st_ino : 0;
}

}  // namespace

Process Process::self() {
  const std::int64_t pid = getpid();
  return {pid, read_stat(pid).start_time, own_pid_namespace()};
}

bool Process::runs() const {
  if (pid == 0 || pid_namespace != own_pid_namespace()) return true;
  if (kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH) return false;
  const Stat now = read_stat(pid);
  if (now.state == 'Z' || now.state == 'X') return false;
  return start_time == 0 || now.start_time == 0 || now.start_time == start_time;
}

}  // namespace ringcomm::shm
