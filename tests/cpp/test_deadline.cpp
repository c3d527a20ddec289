// Deadlines of any length, of which Clock could not count most.
#include <chrono>
#include <limits>

#include "check.h"
#include "core/deadline.h"

namespace {

using namespace ringcomm;
using std::chrono::milliseconds;

TEST(the_longest_timeouts_are_not_over_at_once) {
  const milliseconds century = std::chrono::hours(24 * 365 * 100);
  for (const milliseconds timeout :
       {century, 3 * century, 10 * century, milliseconds(std::numeric_limits<int>::max()),
        milliseconds::max(), milliseconds::max() - milliseconds(1)}) {
    for (const Deadline deadline : {Deadline::in(timeout), Deadline::roughly_in(timeout)}) {
      CHECK(Clock::now() - deadline.start < deadline.timeout);
      CHECK(deadline.start + deadline.timeout > Clock::now());
      CHECK(deadline.timeout == std::min(timeout, century));
    }
    CHECK(Clock::now() + bounded(timeout) > Clock::now());
    CHECK(Clock::now() + (bounded(timeout) + bounded(timeout)) > Clock::now());
  }
}

TEST(timeouts_before_now_are_over) {
  for (const milliseconds timeout : {milliseconds::min(), milliseconds(-1), milliseconds(0)}) {
    const Deadline deadline = Deadline::in(timeout);
    CHECK(Clock::now() - deadline.start >= deadline.timeout);
    CHECK(deadline.start + deadline.timeout <= Clock::now());
  }
}

}  // namespace
