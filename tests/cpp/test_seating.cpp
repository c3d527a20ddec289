// What rank 0 decides on hosts, and what ranks write of themselves.
#include <string>
#include <vector>

#include "check.h"
#include "core/attendee.h"
#include "core/refusal.h"
#include "core/seating.h"

namespace {

using namespace ringcomm;

Seating of_guesses(const std::vector<std::string>& guesses, int first = 0) {
  return Seating(std::vector<std::int64_t>(guesses.size(), 7), guesses, first);
}

TEST(it_begins_with_a_guess) {
  Seating seating = of_guesses({"b", "a", "b"}, 5);
  CHECK(seating.placement() == (Placement{{0, 1, 0}}));
  CHECK(!seating.is_named(seating.attempt_of(0)));
  CHECK(!seating.is_complete());
  CHECK_EQ(seating.next_attempt(), 7);
  seating.set_joined(5);
  CHECK(seating.has_joined(0) && seating.has_joined(2) && !seating.has_joined(1));
  seating.set_joined(6);
  CHECK(seating.is_complete());
}

TEST(a_name_is_tried_before_ranks_are_parted) {
  Seating seating = of_guesses({"a", "b", "a", "a", "a"});
  seating.set_joined(1);
  seating.set_out_of_reach(0, /*named=*/false, {2, 4});
  CHECK(seating.placement() == (Placement{{0, 1, 0, 0, 0}}));
  const int named = seating.attempt_of(0);
  CHECK(named != 0 && seating.is_named(named));
  CHECK_EQ(seating.attempt_of(1), 1);  // it has nothing to do with it

  seating.set_joined(0);  // old news
  seating.set_out_of_reach(0, false, {3});
  CHECK_EQ(seating.attempt_of(3), named);
  CHECK(!seating.has_joined(0));

  seating.set_out_of_reach(named, /*named=*/true, {2, 4});
  CHECK(seating.placement() == (Placement{{0, 1, 2, 0, 2}}));
  CHECK_EQ(seating.attempt_of(0), named);
  CHECK(!seating.is_named(seating.attempt_of(2)));
  seating.set_joined(named);
  CHECK(!seating.is_complete());
  seating.set_joined(seating.attempt_of(2));
  CHECK(seating.is_complete());
}

TEST(what_is_told_is_read) {
  Seating seating({3, 1, 12}, {"a", "a", "b"}, 0);
  seating.set_out_of_reach(0, false, {1});
  const Seating read = Seating::read(seating.text());
  CHECK(read.tickets() == seating.tickets());
  for (int r = 0; r < 3; ++r) {
    CHECK_EQ(read.attempt_of(r), seating.attempt_of(r));
    CHECK_EQ(read.is_named(read.attempt_of(r)), seating.is_named(seating.attempt_of(r)));
  }
}

TEST(what_is_on_a_ticket_is_read) {
  const Attendee attendee{.ticket = 4,
                          .rank = 1,
                          .world_size = 3,
                          .members = 99,
                          .process = Process::self(),
                          .boot = boot_id(),
                          .host = "a name\nof two lines",
                          .is_host_given = true};
  std::string rest;
  const auto read = Attendee::read(attendee.text() + "more", &rest);
  CHECK(read.has_value());
  CHECK_EQ(read->text(), attendee.text());
  CHECK_EQ(read->guess(), attendee.guess());
  CHECK_EQ(rest, "more");
  for (std::size_t length = 0; length < attendee.text().size(); ++length) {
    CHECK(!Attendee::read(attendee.text().substr(0, length)));
  }
}

TEST(who_lives) {
  const Attendee self{.process = Process::self(), .boot = boot_id(), .host = "here"};
  CHECK(self.lives(self));
  Attendee ended = self;
  ended.was_seen = false;
  ++ended.process.start_time;  // its number is another process's now
  CHECK(!ended.lives(self));
  ended.host = "elsewhere";  // under a kernel that is a copy of this one
  CHECK(ended.lives(self));
  ended.was_seen = true;
  CHECK(!ended.lives(self));
  ended.boot = "another";
  CHECK(ended.lives(self));
}

TEST(a_refusal_is_read) {
  const auto read = read_refusal(write_refusal(Error(ErrorKind::kPeerDied, "rank 2\nhas ended")));
  CHECK(read && read->kind() == ErrorKind::kPeerDied);
  CHECK_EQ(std::string(read->what()), "rank 2\nhas ended");
  CHECK(!read_refusal("made"));
}

}  // namespace
