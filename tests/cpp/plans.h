// What tests of plans share: the plans of a whole group, and what can be said of them.
#pragma once

#include <concepts>
#include <iterator>
#include <string>
#include <vector>

#include "plan/algorithms.h"
#include "plan/collective.h"
#include "plan/plan.h"
#include "plan/verify.h"

namespace ringcomm {

// Whether it begins or ends at one rank.
inline bool has_root(Collective collective) {
  return collective == Collective::kReduce || collective == Collective::kGather ||
         collective == Collective::kScatter || collective == Collective::kBroadcast;
}

// generate(rank) for every rank.
template <std::invocable<int> Generate>
std::vector<Plan> plans_of(int world_size, Generate generate) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < world_size; ++rank) plans.push_back(generate(rank));
  return plans;
}

inline std::vector<Plan> plans_of(int world_size, Plan (*generate)(int, int)) {
  return plans_of(world_size, [=](int rank) { return generate(rank, world_size); });
}

inline std::vector<Plan> plans_of(const Algorithm& algorithm, const Setting& setting) {
  return plans_of(setting.world_size, [&](int rank) { return algorithm.generate(rank, setting); });
}

inline std::string label(const Algorithm& algorithm, const Setting& setting) {
  return std::string(to_string(algorithm.collective)) + " (" + std::string(algorithm.name) +
         ") of " + std::to_string(setting.world_size) + " ranks, root " +
         std::to_string(setting.root) + ": ";
}

// host_of for hosts of these sizes, of consecutive ranks.
inline std::vector<int> hosts_of_sizes(const std::vector<int>& sizes) {
  std::vector<int> host_of;
  for (int host = 0; host < std::ssize(sizes); ++host) {
    host_of.insert(host_of.end(), sizes[host], host);
  }
  return host_of;
}

inline std::vector<int> equal_hosts(int world_size, int ranks_per_host) {
  return hosts_of_sizes(std::vector<int>(world_size / ranks_per_host, ranks_per_host));
}

// What verify has to say against the plans; empty if nothing.
inline std::string objection(Collective collective, const std::vector<Plan>& plans, int root = 0) {
  try {
    verify(collective, plans, root);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "";
}

template <typename Error, typename Function>
std::string message_of(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// How many chunks a rank sends, counting what several peers are sent for each of them.
inline int chunks_sent(const Plan& plan) {
  int sum = 0;
  for (const Step& step : plan.steps) {
    for (const Transfer& send : step.sends) sum += send.num_chunks;
  }
  return sum;
}

inline int chunks_received(const Plan& plan) {
  int sum = 0;
  for (const Step& step : plan.steps) {
    for (const Transfer& recv : step.recvs) sum += recv.num_chunks;
  }
  return sum;
}

// ceil(log2(n)), for n of at least 1.
inline int ceil_log2(int n) {
  int log = 0;
  while (1 << log < n) ++log;
  return log;
}

// floor(log2(n)), for n of at least 1.
inline int floor_log2(int n) {
  int log = 0;
  while (n >> (log + 1)) ++log;
  return log;
}

}  // namespace ringcomm
