// The table of algorithms: what there is for each collective, by name.
//
// All that offer a choice read it: communicators, the Python module, the benchmark, the simulator.
// An algorithm is a page of its own in this folder, which explains, proves and defines it
// (plan/ring.h is the one to begin with), and a line in algorithms.cpp. The functions of the pages
// are given ranks and roots of the group, which the table checks for all of them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "plan/collective.h"
#include "plan/plan.h"

namespace ringcomm {

// The group that a plan is for.
struct Setting {
  int world_size = 1;
  int root = 0;                   // ignored by collectives without one
  std::vector<int> host_of = {};  // by rank; empty: all ranks share one host

  bool operator==(const Setting&) const = default;
};

struct Algorithm {
  Collective collective;
  std::string_view name;
  // A line for users: n ranks, or H hosts, the largest of L ranks. What takes log2 n steps takes
  // some more where that is no integer.
  std::string_view about;
  // Throws std::invalid_argument for a rank or root outside of the group, and for what else the
  // algorithm cannot have.
  Plan (*generate)(int rank, const Setting& setting);
  // Null where the steps have no names.
  std::vector<Phase> (*phases)(const Setting& setting) = nullptr;
  bool two_level = false;  // looks at host_of
  // Ranks pass on chunks that neither begin nor end with them, so they must know the counts of all
  // chunks. Only an all-to-all on a device does not.
  bool needs_all_counts = false;
};

// The algorithms of all collectives.
std::span<const Algorithm> algorithms();

// The first one of the collective.
const Algorithm& default_algorithm(Collective collective);

// An algorithm's place in the table.
using AlgorithmId = std::uint8_t;
AlgorithmId id_of(const Algorithm& algorithm);

// Null if the collective has none of this name.
const Algorithm* find_algorithm(Collective collective, std::string_view name);

}  // namespace ringcomm
