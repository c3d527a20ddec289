#include "plan/fair_flows.h"

#include <algorithm>

namespace ringcomm {
namespace {

// What rounding leaves of a message that should have ended.
constexpr double kRounding = 1e-12;

}  // namespace

FairFlows::FairFlows(int num_ranks, double egress, double ingress, double most)
    : num_ranks_(num_ranks), egress_(egress), ingress_(ingress), most_(most) {}

void FairFlows::begin(int from, int to, double nbytes, int id) {
  flows_.push_back({from, to, nbytes, id, 0});
  rates_are_set_ = false;
}

double FairFlows::until_next_end() {
  if (!rates_are_set_) set_rates();
  double first = std::numeric_limits<double>::infinity();
  for (const Flow& flow : flows_) first = std::min(first, flow.nbytes / flow.rate);
  return first;
}

std::vector<int> FairFlows::pass(double seconds) {
  if (!rates_are_set_) set_rates();
  std::vector<int> ended;
  std::erase_if(flows_, [&](Flow& flow) {
    const bool ends = flow.nbytes / flow.rate <= seconds * (1 + kRounding);
    flow.nbytes -= flow.rate * seconds;
    if (ends) ended.push_back(flow.id);
    return ends;
  });
  if (!ended.empty()) rates_are_set_ = false;
  return ended;
}

// The port whose flows reach its limit first decides their rates; then the same among the others.
void FairFlows::set_rates() {
  rates_are_set_ = true;
  std::vector<Port> ports(2 * num_ranks_, Port{egress_});
  for (int r = 0; r < num_ranks_; ++r) ports[num_ranks_ + r].left = ingress_;
  const auto from = [&](const Flow& flow) -> Port& { return ports[flow.from]; };
  const auto to = [&](const Flow& flow) -> Port& { return ports[num_ranks_ + flow.to]; };
  std::vector<Flow*> growing;
  for (Flow& flow : flows_) {
    growing.push_back(&flow);
    ++from(flow).num_growing;
    ++to(flow).num_growing;
  }
  while (!growing.empty()) {
    Port& first = *std::ranges::min_element(ports, {}, &Port::share);
    const double rate = std::min(first.share(), most_);
    std::erase_if(growing, [&](Flow* flow) {
      const bool stops = rate == most_ || &from(*flow) == &first || &to(*flow) == &first;
      if (!stops) return false;
      flow->rate = rate;
      for (Port* port : {&from(*flow), &to(*flow)}) {
        port->left -= rate;
        --port->num_growing;
      }
      return true;
    });
  }
}

}  // namespace ringcomm
