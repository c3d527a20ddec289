// Files in memory: who may open them.
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "shm/file.h"

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
