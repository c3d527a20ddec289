// A rank that comes to make a group, as its ticket describes it (setup/bootstrap.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/process.h"

namespace ringcomm {

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

}  // namespace ringcomm
