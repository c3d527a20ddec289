// Messages that share what ranks can send and receive in a second, as fluids share pipes.
//
// A rank sends at most `egress` bytes per second over all its links together, receives at most
// `ingress`, and one message gets at most `most`. Rates are max-min fair: those of all messages
// grow alike until a rank's limit is reached, and stop there; the others grow on. (D. Bertsekas,
// R. Gallager, Data Networks, 2nd edition, 1992, section 6.5.2.)
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

namespace ringcomm {

class FairFlows {
 public:
  FairFlows(int num_ranks, double egress, double ingress, double most)
      : num_ranks_(num_ranks), egress_(egress), ingress_(ingress), most_(most) {}

  void begin(int from, int to, double nbytes, int id) {
    flows_.push_back({from, to, nbytes, id, 0});
    rates_are_set_ = false;
  }

  // How long until the next message ends; infinity if there is none.
  double until_next_end() {
    if (!rates_are_set_) set_rates();
    double first = std::numeric_limits<double>::infinity();
    for (const Flow& flow : flows_) first = std::min(first, flow.nbytes / flow.rate);
    return first;
  }

  // So much time passes, no more than that. Returns the ids of what has ended, in the order in
  // which it began.
  std::vector<int> pass(double seconds) {
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

 private:
  // What rounding leaves of a message that should have ended.
  static constexpr double kRounding = 1e-12;

  struct Flow {
    int from, to;
    double nbytes;  // that are left
    int id;
    double rate;
  };
  // What one rank can send, or receive, and how many flows still grow there.
  struct Port {
    double left;
    int num_growing = 0;

    double share() const {
      return num_growing == 0 ? std::numeric_limits<double>::infinity() : left / num_growing;
    }
  };

  // The port whose flows reach its limit first decides their rates; then the same among the others.
  void set_rates() {
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

  const int num_ranks_;
  const double egress_, ingress_, most_;
  std::vector<Flow> flows_;
  bool rates_are_set_ = true;
};

}  // namespace ringcomm
