// Messages that share what ranks can send and receive in a second, as fluids share pipes.
//
// A rank sends at most `egress` bytes per second over all its links together, receives at most
// `ingress`, and one message gets at most `most`. Rates are max-min fair: those of all messages
// grow alike until a rank's limit is reached, and stop there; the others grow on. (D. Bertsekas,
// R. Gallager, Data Networks, 2nd edition, 1992, section 6.5.2.)
#pragma once

#include <limits>
#include <vector>

namespace ringcomm {

class FairFlows {
 public:
  FairFlows(int num_ranks, double egress, double ingress, double most);

  void begin(int from, int to, double nbytes, int id);

  // How long until the next message ends; infinity if there is none.
  double until_next_end();
  // So much time passes, no more than that. Returns the ids of what has ended, in the order in
  // which it began.
  std::vector<int> pass(double seconds);

 private:
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

  void set_rates();

  const int num_ranks_;
  const double egress_, ingress_, most_;
  std::vector<Flow> flows_;
  bool rates_are_set_ = true;
};

}  // namespace ringcomm
