#include "plan/network.h"

#include <cmath>
#include <stdexcept>
#include <string>

#include "plan/arguments.h"

namespace ringcomm {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& wanted, double value) {
  throw std::invalid_argument(name + " must be " + wanted + ", got " + std::to_string(value));
}

void check_link(const std::string& name, const Link& link) {
  for (const auto& [part, value] :
       {std::pair(".latency", link.latency), {".overhead", link.overhead}}) {
    if (!std::isfinite(value) || value < 0) refuse(name + part, "finite and at least 0", value);
  }
  if (!(link.bandwidth > 0)) refuse(name + ".bandwidth", "above 0", link.bandwidth);
}

}  // namespace

void check_network(const Network& network, int world_size) {
  check_rank(0, world_size);
  check_ranks_per_host(network.ranks_per_host, world_size);
  if (network.nics_per_host < 1 || network.ranks_per_host % network.nics_per_host != 0) {
    throw std::invalid_argument("nics_per_host must divide ranks_per_host, which is " +
                                std::to_string(network.ranks_per_host) + ", got " +
                                std::to_string(network.nics_per_host));
  }
  check_link("inside", network.inside);
  check_link("across", network.across);
  for (const auto& [name, value] : {std::pair("reduce_bandwidth", network.reduce_bandwidth),
                                    {"egress", network.egress},
                                    {"ingress", network.ingress}}) {
    if (!(value > 0)) refuse(name, "above 0", value);
  }
}

}  // namespace ringcomm
