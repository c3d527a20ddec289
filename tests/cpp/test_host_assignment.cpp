// What rank 0 decides on hosts, and what ranks write of themselves.
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "setup/host_assignment.h"
#include "setup/record.h"
#include "shm/segment_setup.h"

namespace {

using namespace ringcomm;

HostAssignment of_guesses(const std::vector<std::string>& guesses, int first = 0) {
  return HostAssignment(std::vector<std::int64_t>(guesses.size(), 7), guesses, first);
}

TEST(it_begins_with_a_guess) {
  HostAssignment assignment = of_guesses({"b", "a", "b"}, 5);
  CHECK(assignment.placement() == (Placement{{0, 1, 0}}));
  CHECK(!assignment.is_named(assignment.attempt_of(0)));
  CHECK(!assignment.is_complete());
  CHECK_EQ(assignment.next_attempt(), 7);
  assignment.set_joined(5);
  CHECK(assignment.has_joined(0) && assignment.has_joined(2) && !assignment.has_joined(1));
  assignment.set_joined(6);
  CHECK(assignment.is_complete());
}

TEST(a_name_is_tried_before_ranks_are_parted) {
  HostAssignment assignment = of_guesses({"a", "b", "a", "a", "a"});
  assignment.set_joined(1);
  assignment.set_out_of_reach(0, /*named=*/false, {2, 4});
  CHECK(assignment.placement() == (Placement{{0, 1, 0, 0, 0}}));
  const int named = assignment.attempt_of(0);
  CHECK(named != 0 && assignment.is_named(named));
  CHECK_EQ(assignment.attempt_of(1), 1);  // it has nothing to do with it

  assignment.set_joined(0);  // old news
  assignment.set_out_of_reach(0, false, {3});
  CHECK_EQ(assignment.attempt_of(3), named);
  CHECK(!assignment.has_joined(0));

  assignment.set_out_of_reach(named, /*named=*/true, {2, 4});
  CHECK(assignment.placement() == (Placement{{0, 1, 2, 0, 2}}));
  CHECK_EQ(assignment.attempt_of(0), named);
  CHECK(!assignment.is_named(assignment.attempt_of(2)));
  assignment.set_joined(named);
  CHECK(!assignment.is_complete());
  assignment.set_joined(assignment.attempt_of(2));
  CHECK(assignment.is_complete());
}

TEST(what_is_published_is_read) {
  HostAssignment assignment({3, 1, 12}, {"a", "a", "b"}, 0);
  assignment.set_out_of_reach(0, false, {1});
  const HostAssignment read = HostAssignment::read(assignment.text(), 3).value();
  CHECK(read.tickets() == assignment.tickets());
  for (int r = 0; r < 3; ++r) {
    CHECK_EQ(read.attempt_of(r), assignment.attempt_of(r));
    CHECK_EQ(read.is_named(read.attempt_of(r)), assignment.is_named(assignment.attempt_of(r)));
  }
}

TEST(what_is_on_a_ticket_is_read) {
  const Participant participant{.ticket = 4,
                                .rank = 1,
                                .world_size = 3,
                                .members = 99,
                                .process = Process::self(),
                                .boot = boot_id(),
                                .host = "a name, of 2:words",
                                .is_host_given = true};
  std::string_view rest;
  const std::string text = participant.text() + "more";
  const auto read = Participant::read(text, &rest);
  CHECK(read.has_value());
  CHECK_EQ(read->text(), participant.text());
  CHECK_EQ(read->guess(), participant.guess());
  CHECK_EQ(std::string(rest), "more");
  for (std::size_t length = 0; length < participant.text().size(); ++length) {
    CHECK(!Participant::read(participant.text().substr(0, length)));
  }
}

TEST(fields_may_be_empty_and_hold_anything) {
  const std::vector<std::string> all = {"",      " ", "\n", "3:abc,", std::string("\0\xff", 2),
                                        " a  b "};
  for (const std::string& odd : all) {
    const Participant participant{
        .ticket = 0, .rank = 0, .world_size = 1, .boot = odd, .host = "", .refusal = odd};
    const auto read = Participant::read(participant.text());
    CHECK(read && read->boot == odd && read->host.empty() && read->refusal == odd);
    const auto error = read_refusal(write_refusal(Error(ErrorKind::kSystem, odd)));
    CHECK(error && std::string(error->what()) == Error(ErrorKind::kSystem, odd).what());
    const auto config = InterHostConfig::read(InterHostConfig{.engine = odd}.text());
    CHECK(config && config->engine == odd);
    const shm::SegmentSetup::Outcome outcome{3, true, {1}, {odd, odd}};
    const auto found = shm::SegmentSetup::Outcome::read(outcome.text(), 2);
    CHECK(found && found->engines == outcome.engines &&
          found->out_of_reach == outcome.out_of_reach);
  }
}

// Whatever stands in a store, readers find a record or none.
TEST(records_of_others_may_hold_anything) {
  std::mt19937 random(1);
  const HostAssignment assignment({3, 1, 12}, {"a", "a", "b"}, 0);
  const std::vector<std::string> good = {
      Participant{.ticket = 1, .rank = 0, .world_size = 3, .boot = "b", .host = "h"}.text(),
      assignment.text(),
      write_refusal(Error(ErrorKind::kSystem, "why")),
      InterHostConfig{.engine = "ucx"}.text(),
      shm::SegmentSetup::Outcome{3, true, {1, 2}, {"ucx", "gloo"}}.text(),
      "1:3,1:0,1:7,",
      "18446744073709551615:a,",
      "-1:a,",
      "0:,0:,0:,",
      "1:3,10:2147483648,",
      "7:refused,2:99,0:,",
      "7:outcome,1:0,1:1,10:2147483647,",
      "7:outcome,1:0,1:1,1:1,1:9,",
      "7:outcome,1:0,1:1,1:1,2:-1,",
  };
  for (int i = 0; i < 200'000; ++i) {
    std::string text = good[random() % good.size()];
    for (unsigned changes = random() % 4; changes > 0 && !text.empty(); --changes) {
      const std::size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1 + random() % 3);
          break;
        case 2:
          text.insert(at, 1, "0123456789:,-"[random() % 13]);
          break;
        case 3:
          text += good[random() % good.size()];
          break;
      }
    }
    std::string_view rest;
    if (const auto read = Participant::read(text, &rest)) {
      CHECK(read->rank >= 0 && read->rank < read->world_size && rest.size() < text.size());
    }
    if (const auto read = HostAssignment::read(text, 3)) {
      for (int r = 0; r < 3; ++r) read->is_named(read->attempt_of(r));
    }
    if (const auto read = shm::SegmentSetup::Outcome::read(text, 3)) {
      HostAssignment changed = assignment;
      changed.set_out_of_reach(read->attempt, read->named, read->out_of_reach);
      CHECK_EQ(changed.tickets().size(), 3u);
    }
    read_refusal(text);
    InterHostConfig::read(text);
  }
}

TEST(a_rank_of_unknown_host_is_tried_with_the_first_of_a_known_one) {
  const Participant known{.boot = "a"}, other{.boot = "b"}, hidden{};
  const Participant named{.host = "x", .is_host_given = true};
  CHECK(Placement::of(guesses_of({hidden, known, hidden, other})) == (Placement{{0, 0, 0, 1}}));
  CHECK(Placement::of(guesses_of({hidden, hidden})) == (Placement{{0, 0}}));
  CHECK(Placement::of(guesses_of({named, hidden, hidden})) == (Placement{{0, 1, 1}}));
}

TEST(where_little_can_be_known_of_a_process_it_lives_until_it_was_seen) {
  const Participant self{.process = Process::self(), .boot = boot_id(), .host = "here"};
  Participant onlooker = self, ended = self;
  ++ended.process.start_time;
  onlooker.boot = ended.boot = "";
  CHECK(ended.lives(onlooker));  // another host may have the same name
  ended.was_seen = true;
  CHECK(!ended.lives(onlooker));
  onlooker.boot = ended.boot = boot_id();
  onlooker.process.pid_namespace = ended.process.pid_namespace = 0;
  ended.was_seen = false;
  CHECK(ended.lives(onlooker));
  CHECK(ended.process.runs());
  Participant seen = self;
  seen.process.pid_namespace = 0;
  CHECK(seen.lives(onlooker) && seen.was_seen);
}

TEST(which_ranks_live) {
  const Participant self{.process = Process::self(), .boot = boot_id(), .host = "here"};
  CHECK(self.lives(self));
  Participant ended = self;
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
