// What the ranks that are taken to be on one host do to come into one file in memory: see
// shm/group_setup.h.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "setup/bootstrap.h"
#include "setup/group_config.h"
#include "setup/host_assignment.h"
#include "shm/segment.h"

namespace ringcomm::shm {

class SegmentSetup {
 public:
  // What is given must stay. The segment has no memory yet.
  SegmentSetup(Segment& segment, Bootstrap& bootstrap, const GroupConfig& config);

  // Takes the part that rank 0 wants this rank to take, in a group that no other is named as. Where
  // it is another than before, leaves the memory of the earlier attempt. Throws Error (kSystem).
  void take_part(const HostAssignment& assignment, const std::string& name);
  // The first rank of the attempt makes the file, and leads.
  bool is_first() const { return part_ == Part::kFirst; }
  // The ranks of the attempt that are waited for.
  std::vector<int> awaited();

  // The first: the outcome, when all have looked at the file; returned once.
  struct Outcome {
    int attempt;
    bool named;
    std::vector<int> out_of_reach;
    std::vector<std::string> engines;  // of this host; none if there is no other

    std::string text() const;
    // Nothing if it is none of a group of so many.
    static std::optional<Outcome> read(std::string_view text, int world_size);
  };
  std::optional<Outcome> outcome();
  // The first: what another rank of the attempt has written.
  void take_in(const SetupMessage& message);
  // The first: writes to the file how it ends, where the ranks are, and what they use between their
  // hosts. Others do nothing.
  void declare_made(const Placement& placement, const std::vector<std::string>& host_names,
                    const InterHostConfig& inter_host);
  void declare_refused(const Error& error);
  // The first, when the group is declared made: waits until the others know. False: one does not
  // come to know it in a second. Others do nothing.
  bool await_others() noexcept;
  // The first: the others may go on.
  void let_go() noexcept;

  // The others: maps the file if it is there, or writes to the first that it is out of reach.
  // Throws Error (kSystem).
  void join();
  // The others, when the group is made: waits until the first lets them go, or ends. This rank
  // reads nothing more in the store.
  void await_first();
  // The others: all is said in memory.
  bool has_joined() const { return part_ == Part::kJoined; }
  // Where the group is made, as the file says, once this rank may go on. Throws the Error by which
  // it is refused.
  std::optional<Placement> verdict();
  // When it is made: what the file says.
  InterHostConfig inter_host();
  // The others: takes away the name of the file, if it has one.
  void clean_up();

 private:
  enum class Part {
    kNone,
    kFirst,
    kLooking,  // for the file
    kJoined,
    kIdle,  // until the next broadcast of rank 0
  };

  void leave();
  bool is_missing(int rank);

  Segment& segment_;
  Bootstrap& bootstrap_;
  const Members& names_;
  const std::vector<TunedRule>& tuned_;
  const std::function<std::vector<std::string>()>& engines_;
  const int rank_;
  Part part_ = Part::kNone;
  int number_ = -1;
  std::vector<int> members_;       // ascending
  std::vector<int> out_of_reach_;  // of them
  bool is_published_ = false;      // the outcome
  bool is_only_host_ = true;
};

}  // namespace ringcomm::shm
