// The ranks that come to make a group, and which of them try to share memory, as rank 0 decides and
// sends it to all.
//
// It begins with a guess, by what each rank says of itself, and changes with the outcomes. Ranks
// that are taken to be on one host make an attempt: the first of them makes a file in memory, the
// others map it. If some cannot reach it, they all try once more with a file that has a name. A
// rank that cannot reach that either is taken to be on another host, and tries there. So it ends,
// with a host for each rank if need be.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/group.h"
#include "core/process.h"

namespace ringcomm {

// A rank that comes, as its ticket describes it (setup/bootstrap.h).
struct Participant {
  std::int64_t ticket = -1;  // no other's in this store
  int rank = -1;
  int world_size = 0;
  std::uint64_t members = 0;  // digest of their global ranks
  Process process = {};
  std::string boot = {};  // shows whether the process's number means anything here; may be hidden
  std::string host = {};  // as its user calls it, or as it calls itself
  bool is_host_given = false;
  std::string refusal = {};       // why it will not come; empty: it will
  mutable bool was_seen = false;  // to run here, by this process

  // Participants with the same guess may share memory.
  std::string guess() const { return is_host_given ? "name " + host : "kernel " + boot; }
  // Whether its host is unknown: no name was given, and its kernel's boot id is hidden.
  bool is_anywhere() const { return !is_host_given && boot.empty(); }

  // False if the onlooker can be certain that its process has ended. Where hosts have different
  // names, the kernels may be copies of each other, in virtual machines, and where boot ids are
  // hidden there may be different kernels: a process that was never seen to run here then runs
  // elsewhere. The same holds if process numbers may be of different namespaces.
  bool lives(const Participant& onlooker) const;

  std::string text() const;
  // Nothing if it is no ticket, or one of another build. `rest`: what stands behind it.
  static std::optional<Participant> read(std::string_view text, std::string_view* rest = nullptr);
};

// The first guess of each participant's host, by rank. If its host is unknown, a participant is
// tried with the first one that has a kernel.
std::vector<std::string> guesses_of(const std::vector<Participant>& participants);

class HostAssignment {
 public:
  HostAssignment() = default;
  // Assigns ranks with these tickets, and these guesses of where they are: by rank. Attempts are
  // numbered from `first` on.
  HostAssignment(std::vector<std::int64_t> tickets, const std::vector<std::string>& guesses,
                 int first);

  Placement placement() const { return Placement::of(attempt_of_); }
  const std::vector<std::int64_t>& tickets() const { return tickets_; }
  // By its number: what those do together that are taken to be on the rank's host.
  int attempt_of(int rank) const { return attempt_of_[rank]; }
  // Whether its file is to have a name.
  bool is_named(int attempt) const { return attempts_.at(attempt).named; }
  int next_attempt() const { return attempts_.empty() ? 0 : attempts_.rbegin()->first + 1; }

  // What has come of an attempt: all have mapped the file; or all but these, `named` being whether
  // it had a name. News of attempts that are over change nothing.
  void set_joined(int attempt);
  void set_out_of_reach(int attempt, bool named, const std::vector<int>& ranks);
  // Whether all attempts have come to a good end.
  bool is_complete() const;
  bool has_joined(int rank) const { return attempts_.at(attempt_of_[rank]).joined; }

  // The assignment as it is sent. The outcomes of attempts are not part of it.
  std::string text() const;
  // Nothing if it is none of a group of so many.
  static std::optional<HostAssignment> read(std::string_view text, int world_size);

 private:
  struct Attempt {
    bool named = false;
    bool joined = false;
  };

  void move(const std::vector<int>& ranks, bool named);

  std::vector<std::int64_t> tickets_;
  std::vector<int> attempt_of_;      // by rank
  std::map<int, Attempt> attempts_;  // those that are not over
};

}  // namespace ringcomm
