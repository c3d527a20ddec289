#include "core/process.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <string>

#include "core/text.h"

namespace ringcomm {
namespace {

struct Stat {
  char state = 0;
  std::uint64_t start_time = 0;
};

// Fields 3 (state) and 22 (starttime) of /proc/PID/stat; the name in field 2 may hold anything, so
// counting starts behind its closing parenthesis.
Stat read_stat(std::int64_t pid) {
  // Not a std::ifstream, which throws when the process ends between opening and reading.
  const int file = open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
  char buffer[1024];
  const ssize_t length = file < 0 ? -1 : ::read(file, buffer, sizeof(buffer));
  if (file >= 0) close(file);
  const std::string text(buffer, static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
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

double Process::started() const {
  return static_cast<double>(start_time) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

bool Process::is_stopped() const {
  if (!is_numbered_here()) return false;
  const char state = read_stat(pid).state;
  return state == 'T' || state == 't';
}

bool Process::is_numbered_here() const {
  return pid > 0 && pid_namespace != 0 && pid_namespace == own_pid_namespace();
}

Process::Look Process::look() const {
  if (pid <= 0) return Look::kUnknown;  // these mean other processes to kill()
  if (kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH) return Look::kEnded;
  const Stat now = read_stat(pid);
  if (now.state == 'Z' || now.state == 'X') return Look::kEnded;
  if (start_time == 0 || now.start_time == 0) return Look::kUnknown;
  return now.start_time == start_time ? Look::kRuns : Look::kEnded;
}

bool Process::runs() const { return !is_numbered_here() || look() != Look::kEnded; }

std::string boot_id() {
  static const std::string known = [] {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string id;  // stays empty if there is no such file
    std::getline(file, id);
    return id;
  }();
  return known;
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return *name == '\0' ? "?" : printable_utf8(name);
}

int ForkGuard::generation() {
  static std::atomic<int> forks{0};
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;
  return forks.load(std::memory_order_relaxed);
}

bool is_switched_on(const char* name) {
  static constexpr std::array kOn = {"1", "true", "t", "yes", "y"};
  const char* value = value_of_variable(name);
  return value != nullptr && std::ranges::any_of(kOn, [value](const char* word) {
           return strcasecmp(value, word) == 0;
         });
}

}  // namespace ringcomm
