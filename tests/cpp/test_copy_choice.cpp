// When the parts of an all-to-all are read by the kernel: what the times of calls lead to.
#include <array>
#include <cstddef>

#include "check.h"
#include "shm/copy_choice.h"

namespace {

using ringcomm::shm::CopyChoice;

struct Seconds {
  double slots;
  double kernel;
};

// Calls that went by the kernel, of so many that take so long.
int by_kernel(CopyChoice& choice, int calls, Seconds seconds) {
  int count = 0;
  for (int i = 0; i < calls; ++i) {
    const bool is_by_kernel = choice.by_kernel();
    count += is_by_kernel;
    choice.took(is_by_kernel ? seconds.kernel : seconds.slots);
  }
  return count;
}

TEST(both_ways_are_tried_first) {
  CopyChoice choice;
  CHECK_EQ(by_kernel(choice, CopyChoice::kCalls, {100e-6, 70e-6}), 0);
  CHECK_EQ(by_kernel(choice, CopyChoice::kCalls, {100e-6, 70e-6}), CopyChoice::kCalls);
  CopyChoice of_long_calls;
  CHECK_EQ(by_kernel(of_long_calls, CopyChoice::kLongCalls, {5e-3, 4e-3}), 0);
  CHECK(of_long_calls.by_kernel());
}

TEST(the_faster_way_is_taken_and_hardly_anything_is_lost) {
  for (const Seconds seconds : {Seconds{100e-6, 70e-6}, Seconds{5e-3, 2e-3}}) {
    CopyChoice choice;
    CHECK(by_kernel(choice, 10'000, seconds) > 9'900);
  }
  // As fast is no reason, and much slower takes one call to see.
  for (const Seconds seconds : {Seconds{100e-6, 95e-6}, Seconds{100e-6, 140e-6}}) {
    CopyChoice choice;
    CHECK(by_kernel(choice, 10'000, seconds) < 50);
  }
  CopyChoice choice;
  CHECK(by_kernel(choice, 10'000, {100e-6, 200e-6}) < 12);
}

TEST(what_changes_is_noticed) {
  CopyChoice choice;
  by_kernel(choice, 20'000, {100e-6, 70e-6});
  by_kernel(choice, 2 * CopyChoice::kSeldom, {100e-6, 130e-6});
  CHECK(by_kernel(choice, 1'000, {100e-6, 130e-6}) < 50);
  by_kernel(choice, 2 * CopyChoice::kSeldom, {200e-6, 130e-6});
  CHECK(by_kernel(choice, 1'000, {200e-6, 130e-6}) > 950);
}

// A call now and then takes long, whichever way it goes: its rank has lost the core.
TEST(disturbances_decide_nothing) {
  CopyChoice choice;
  int count = 0;
  for (int i = 0; i < 10'000; ++i) {
    const double disturbed = i % 3 == 0 ? 10 : 1;
    count += choice.by_kernel();
    choice.took(disturbed * (choice.by_kernel() ? 70e-6 : 100e-6));
  }
  CHECK(count > 9'000);
}

}  // namespace
