// How the ranks of a group come into shared memory, each into that of its host, and find out which
// ranks are on which host, and what carries bytes between the hosts: of what the first rank of each
// can use, the first that all can.
//
// Rank 0 waits until all have come (setup/bootstrap.h). It guesses which ranks share memory, and
// sends that to all (setup/host_assignment.h). Now the first rank of each host makes a file and
// publishes its address to the others of its host, which open it, map it and report that in it
// (shm/segment_setup.h). The first rank sends the outcome to rank 0, which repeats this until all
// ranks of each host are in one file. Then rank 0 broadcasts that the group is made, and the first
// ranks write it to the files.
//
//   rank 0              the first of a host        the others
//   broadcast: HostAssignment
//                       published: address, cookie
//                                                  RankState::joined; or
//                                                  message: out of reach
//                       message: outcome
//   broadcast: HostAssignment
//                       GroupHeader::setup: again
//   ...
//   broadcast: made     GroupHeader::setup: made
//                                                  RankState::left
//                       left
//   erases all          GroupHeader::setup: done
//
// A rank that cannot be in the group by its own fault, and one that sees that another has ended,
// sends that to rank 0, which refuses the group to all. So it is made everywhere or nowhere: what
// rank 0 has broadcast counts, and a rank that misses the first of its host reads the broadcasts.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "setup/bootstrap.h"
#include "setup/host_assignment.h"
#include "shm/segment_setup.h"

namespace ringcomm::shm {

class GroupSetup {
 public:
  // What is given must stay. The segment has no memory yet.
  GroupSetup(Segment& segment, Store& store, const GroupConfig& config);

  // Returns when all ranks of the group are in their places, this one's in the segment. Throws
  // Error otherwise.
  Placement run();
  // Afterwards: what the ranks use between their hosts.
  const InterHostConfig& inter_host() const { return inter_host_; }

 private:
  // What rank 0 broadcasts last: that the group is made, its settings, and the names of the hosts.
  static std::string made_message(const InterHostConfig& inter_host,
                                  const std::vector<std::string>& host_names);
  static bool is_made(const std::string& word, InterHostConfig* inter_host,
                      std::vector<std::string>* host_names);

  // What rank 0 does that others do not.
  Placement lead();
  void place();
  void await();
  void receive();
  bool take_in(const SegmentSetup::Outcome& outcome);
  std::string agreed_engine(const Placement& placement) const;
  void broadcast();
  std::vector<int> awaited();

  // The others'.
  Placement follow();
  std::optional<Placement> go_on(bool listens);
  std::optional<Placement> listen();
  void report();
  void or_write(const std::string& prefix, const std::function<void()>& body);
  std::optional<Placement> after_death(const Error& death);
  void leave() noexcept;

  const GroupConfig& config_;
  const int rank_;
  Bootstrap bootstrap_;
  SegmentSetup segment_setup_;
  std::string name_;           // rank 0's: no other group is named so
  HostAssignment assignment_;  // rank 0's last one, if this rank is in it
  InterHostConfig inter_host_;
  std::map<int, std::vector<std::string>> engines_;  // rank 0's: by attempt
  bool is_refused_ = false;                          // as memory says
  bool wrote_death_ = false;                         // to rank 0; the answer is awaited
};

}  // namespace ringcomm::shm
