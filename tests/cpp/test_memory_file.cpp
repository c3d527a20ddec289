// Files in memory: which processes may open them.
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "shm/memory_file.h"

namespace {

using ringcomm::shm::File;

constexpr uid_t kAnother = 12345;

TEST(a_file_is_opened_by_its_user) {
  for (const File::Kind kind : {File::Kind::kAnonymous, File::Kind::kNamed}) {
    const auto made = File::make(kind);
    CHECK(made.has_value());
    const auto opened = File::open(made->address());
    CHECK(opened.has_value());
    struct stat one {
    }, other{};
    CHECK_EQ(fstat(made->descriptor(), &one), 0);
    CHECK_EQ(fstat(opened->descriptor(), &other), 0);
    CHECK_EQ(one.st_ino, other.st_ino);
  }
}

TEST(a_place_is_locked_as_long_as_its_file_is_open) {
  for (const File::Kind kind : {File::Kind::kAnonymous, File::Kind::kNamed}) {
    const auto made = File::make(kind);
    const auto onlooker = File::open(made->address());
    auto opened = File::open(made->address()), another = File::open(made->address());
    CHECK(!onlooker->is_locked(1));
    CHECK(opened->lock(1));
    CHECK(onlooker->is_locked(1) && !onlooker->is_locked(0) && !onlooker->is_locked(2));
    CHECK(another->lock(2));
    CHECK(!another->lock(1));
    another.reset();
    CHECK(onlooker->is_locked(1) && !onlooker->is_locked(2));
    opened.reset();
    CHECK(!onlooker->is_locked(1));
  }
}

// A program that the process executes does not hold it; a child that it forks may.
TEST(a_place_is_lost_with_the_program) {
  const auto made = File::make(File::Kind::kAnonymous);
  int holding[2];
  CHECK_EQ(pipe(holding), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto opened = File::open(made->address());
    opened->lock(1);
    char byte = 1;
    if (write(holding[1], &byte, 1) == 1 && raise(SIGSTOP) == 0)
      execlp("sleep", "sleep", "100", nullptr);
    _exit(1);
  }
  char byte = 0;
  CHECK_EQ(read(holding[0], &byte, 1), 1);
  CHECK(made->is_locked(1));
  kill(child, SIGCONT);
  while (made->is_locked(1)) {
    waitpid(child, nullptr, WUNTRACED | WNOHANG);
    kill(child, SIGCONT);
    usleep(1000);
  }
  CHECK_EQ(kill(child, 0), 0);  // it goes on
  CHECK_EQ(waitpid(child, nullptr, WNOHANG), 0);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

// Only root could open it at all, and give it away, as this test does.
TEST(a_file_of_another_user_is_out_of_reach_even_of_root) {
  if (geteuid() != 0) return;
  for (const File::Kind kind : {File::Kind::kAnonymous, File::Kind::kNamed}) {
    const auto made = File::make(kind);
    CHECK(made.has_value());
    CHECK_EQ(fchown(made->descriptor(), kAnother, kAnother), 0);
    CHECK(!File::open(made->address()).has_value());
  }
}

}  // namespace
