#include "plan/simulate.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <queue>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ringcomm {

// ---- What is carried out ------------------------------------------------------------------------

// What a simulation has to carry out: the plans of the ranks that it simulates, as tasks (one step
// of one rank) and sends between them, with every send paired with its receive. One rank stands
// for all that do the same, but for where they stand.
//
// The ranks stand in a grid of hosts and ranks per host, rank h*L + l in row h and column l. A
// shift adds to both coordinates, modulo H and L. Plans are symmetric under a set of shifts if the
// plan of a shifted rank is the plan with its peers shifted, chunk numbers aside. An orbit is a set
// of ranks that the shifts carry into each other, and its lowest rank represents it:
//
//      kNone     no shift                     every rank represents itself
//      kHosts    by any number of hosts       the ranks of host 0 represent their columns
//      kGrid     by any hosts and any ranks   rank 0 represents all
//
// With one host, or with one rank per host, kGrid is the rotation of all ranks.
enum class Symmetry { kNone, kHosts, kGrid };

class Orbits {
 public:
  // ranks_per_host divides world_size.
  Orbits(Symmetry symmetry, int world_size, int ranks_per_host)
      : symmetry_(symmetry), world_size_(world_size), ranks_per_host_(ranks_per_host) {}

  // The representatives are the ranks 0, ..., count()-1.
  int count() const {
    switch (symmetry_) {
      case Symmetry::kHosts:
        return ranks_per_host_;
      case Symmetry::kGrid:
        return 1;
      case Symmetry::kNone:
        break;
    }
    return world_size_;
  }

  int representative(int rank) const { return shifted(rank, rank); }

  // Where `rank` comes to stand under the shift that carries `reference` to its representative.
  int shifted(int rank, int reference) const {
    if (symmetry_ == Symmetry::kNone) return rank;
    const int hosts = world_size_ / ranks_per_host_;
    const int host = (rank / ranks_per_host_ - reference / ranks_per_host_ + hosts) % hosts;
    int local = rank % ranks_per_host_;
    if (symmetry_ == Symmetry::kGrid) {
      local = (local - reference % ranks_per_host_ + ranks_per_host_) % ranks_per_host_;
    }
    return host * ranks_per_host_ + local;
  }

  // Whether `plan` of `rank` is what its representative's, `expected`, becomes when shifted: as
  // many steps, and in each the same sends in the same order and the same receives, the order of
  // those from different peers aside. All peers must be ranks.
  bool agree(const Plan& expected, int rank, const Plan& plan) const {
    const auto shape = [&](std::vector<Transfer> transfers, int reference, bool ordered) {
      for (Transfer& transfer : transfers) {
        transfer.peer = shifted(transfer.peer, reference);
        transfer.first_chunk = 0;
      }
      if (!ordered) std::ranges::stable_sort(transfers, {}, &Transfer::peer);
      return transfers;
    };
    const auto same = [&](const std::vector<Transfer>& mine, const std::vector<Transfer>& theirs,
                          bool ordered) {
      return shape(mine, rank, ordered) == shape(theirs, representative(rank), ordered);
    };
    return std::ranges::equal(plan.steps, expected.steps,
                              [&](const Step& mine, const Step& theirs) {
                                return same(mine.sends, theirs.sends, /*ordered=*/true) &&
                                       same(mine.recvs, theirs.recvs, /*ordered=*/false);
                              });
  }

 private:
  Symmetry symmetry_;
  int world_size_;
  int ranks_per_host_;
};

struct Workload {
  // The tasks of a rank follow each other; a task's sends are sends[first_send ...].
  struct Task {
    int rank = 0;
    int step = 0;
    int first_send = 0, num_sends = 0;
    int num_recvs = 0;
    std::int64_t reduced_chunks = 0;
    bool last = false;
  };
  struct Send {
    int task;  // the receiver's
    int num_chunks;
    bool across;
    int from_port, to_port;
    std::uint64_t tie;  // see plan/simulate.h
  };

  Orbits orbits;
  int num_ports = 0;
  int num_chunks = 0;
  std::vector<Task> tasks;
  std::vector<Send> sends;
};

namespace {

// Steps, and transfers, that are simulated: 300 MB, and seconds.
constexpr std::size_t kMostSimulated = std::size_t{1} << 22;

using PlanOf = std::function<Plan(int rank)>;

// Ranks that share a network card must all be simulated.
bool fits(Symmetry symmetry, const Network& network, int world_size) {
  return symmetry != Symmetry::kGrid || network.ranks_per_host == world_size ||
         network.nics_per_host == network.ranks_per_host;
}

bool symmetric(const Orbits& orbits, int world_size, const PlanOf& plan_of,
               const std::vector<int>& compared) {
  std::vector<Plan> representatives;
  for (int rank = 0; rank < orbits.count(); ++rank) representatives.push_back(plan_of(rank));
  return std::ranges::all_of(compared, [&](int rank) {
    check_rank(rank, world_size);
    return orbits.agree(representatives[orbits.representative(rank)], rank, plan_of(rank));
  });
}

void check_number(std::size_t number, const std::string& what) {
  if (number <= kMostSimulated) return;
  throw std::invalid_argument("plans of differing ranks are simulated up to " +
                              std::to_string(kMostSimulated) + " " + what +
                              ", and these have more");
}

class Builder {
 public:
  Builder(const Orbits& orbits, int world_size, const Network& network, const PlanOf& plan_of)
      : world_size_(world_size),
        network_(network),
        plan_of_(plan_of),
        workload_{.orbits = orbits, .tasks = {}, .sends = {}} {
    const int hosts = (orbits.count() - 1) / network.ranks_per_host + 1;
    workload_.num_ports = orbits.count() + hosts * network.nics_per_host;
    add_tasks();
    add_sends();
  }

  // Whether every message is received in the step in which it is sent.
  bool in_step() const { return in_step_; }
  Workload workload() && { return std::move(workload_); }

 private:
  struct Recv {
    int task;
    int num_chunks;
  };
  // The receives from one simulated rank to one rank, in order.
  struct Incoming {
    std::vector<Recv> recvs;
    std::size_t paired = 0;
  };

  Incoming& incoming(int sender, int receiver) {
    return incoming_[static_cast<std::uint64_t>(sender) << 32 |
                     static_cast<std::uint32_t>(receiver)];
  }

  void add_tasks() {
    const Orbits& orbits = workload_.orbits;
    std::size_t num_recvs = 0;
    for (int rank = 0; rank < orbits.count(); ++rank) {
      const Plan plan = plan_of_(rank);
      workload_.num_chunks = plan.num_chunks;
      for (int step = 0; step < static_cast<int>(plan.steps.size()); ++step) {
        const std::vector<Transfer>& recvs = plan.steps[step].recvs;
        Workload::Task task{.rank = rank,
                            .step = step,
                            .num_recvs = static_cast<int>(recvs.size()),
                            .last = step + 1 == std::ssize(plan.steps)};
        for (const Transfer& recv : recvs) {
          incoming(orbits.representative(recv.peer), orbits.shifted(rank, recv.peer))
              .recvs.push_back({static_cast<int>(workload_.tasks.size()), recv.num_chunks});
          if (recv.reduce) task.reduced_chunks += recv.num_chunks;
        }
        workload_.tasks.push_back(task);
        check_number(workload_.tasks.size(), "steps");
        num_recvs += recvs.size();
        check_number(num_recvs, "transfers");
      }
    }
  }

  void add_sends() {
    std::size_t next_task = 0;
    for (int rank = 0; rank < workload_.orbits.count(); ++rank) {
      for (const Step& step : plan_of_(rank).steps) {
        Workload::Task& task = workload_.tasks[next_task++];
        task.first_send = static_cast<int>(workload_.sends.size());
        task.num_sends = static_cast<int>(step.sends.size());
        for (int index = 0; index < task.num_sends; ++index) {
          add_send(task, index, step.sends[index]);
        }
      }
    }
    for (const auto& [key, awaited] : incoming_) {
      if (awaited.paired == awaited.recvs.size()) continue;
      const Workload::Task& task = workload_.tasks[awaited.recvs[awaited.paired].task];
      throw PlanError(describe_place(task.rank, task.step) +
                      "nobody sends what it receives; verify says more");
    }
  }

  void add_send(const Workload::Task& task, int index, const Transfer& send) {
    Incoming& awaited = incoming(task.rank, send.peer);
    if (awaited.paired == awaited.recvs.size() ||
        awaited.recvs[awaited.paired].num_chunks != send.num_chunks) {
      throw PlanError(describe_place(task.rank, task.step) + "rank " + std::to_string(send.peer) +
                      " does not receive what it is sent; verify says more");
    }
    const int receiver = awaited.recvs[awaited.paired++].task;
    in_step_ &= workload_.tasks[receiver].step == task.step;

    const int per_host = network_.ranks_per_host;
    const int hosts = world_size_ / per_host;
    const int hosts_apart = (task.rank / per_host - send.peer / per_host + hosts) % hosts;
    const bool across = hosts_apart != 0;
    workload_.sends.push_back(
        {.task = receiver,
         .num_chunks = send.num_chunks,
         .across = across,
         .from_port = port(task.rank, across),
         .to_port = port(workload_.orbits.representative(send.peer), across),
         .tie = static_cast<std::uint64_t>(index) << 32 |
                static_cast<std::uint32_t>(hosts_apart * per_host + task.rank % per_host)});
  }

  // First the simulated ranks' ports inside hosts, then the network cards of their hosts.
  int port(int rank, bool across) const {
    if (!across) return rank;
    const int per_host = network_.ranks_per_host;
    const int nics = network_.nics_per_host;
    return workload_.orbits.count() + rank / per_host * nics + rank % per_host * nics / per_host;
  }

  const int world_size_;
  const Network& network_;
  const PlanOf& plan_of_;
  Workload workload_;
  std::unordered_map<std::uint64_t, Incoming> incoming_;
  bool in_step_ = true;
};

// The work of the representatives under a symmetry: the largest one that the plans of the ranks in
// `compared` have, that gives each simulated rank the ports which it has in full, and under which
// every message is received in the step in which it is sent. Throws std::invalid_argument for a
// rank that is none, and for plans of differing ranks with more than 2^22 steps or transfers; what
// check_plan throws; PlanError for sends and receives that do not match.
Workload make_workload(int world_size, const PlanOf& plan_of, const Network& network,
                       const std::vector<int>& compared) {
  check_network(network, world_size);
  const int num_chunks = plan_of(0).num_chunks;
  const PlanOf checked_plan_of = [&](int rank) {
    Plan plan = plan_of(rank);
    check_plan(plan, rank, world_size, num_chunks);
    return plan;
  };
  for (const Symmetry symmetry : {Symmetry::kGrid, Symmetry::kHosts}) {
    const Orbits orbits(symmetry, world_size, network.ranks_per_host);
    if (!fits(symmetry, network, world_size) ||
        !symmetric(orbits, world_size, checked_plan_of, compared)) {
      continue;
    }
    Builder builder(orbits, world_size, network, checked_plan_of);
    if (builder.in_step()) return std::move(builder).workload();
  }
  const Orbits orbits(Symmetry::kNone, world_size, network.ranks_per_host);
  return Builder(orbits, world_size, network, checked_plan_of).workload();
}

// ---- Shared limits ------------------------------------------------------------------------------

// Messages that share what ranks can send and receive in a second, as fluids share pipes.
//
// A rank sends at most `egress` bytes per second over all its links together, receives at most
// `ingress`, and one message gets at most `most`. Rates are max-min fair: those of all messages
// grow alike until a rank's limit is reached, and stop there; the others grow on. (D. Bertsekas,
// R. Gallager, Data Networks, 2nd edition, 1992, section 6.5.2.)
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

// ---- Carrying it out ----------------------------------------------------------------------------

// At 16 bytes a slice of a step, and 56 a message that is under way, as all of them may be: 1 GB
// for the steps and 2 for the messages.
constexpr std::size_t kMaxSlices = std::size_t{1} << 26;
constexpr std::size_t kMaxMessages = std::size_t{1} << 25;

void check_slices(std::size_t number, const std::string& what, double num_slices,
                  std::size_t most) {
  if (num_slices * static_cast<double>(number) <= static_cast<double>(most)) return;
  throw std::invalid_argument("the simulated ranks have " + std::to_string(number) + " " + what +
                              " of " + std::to_string(static_cast<std::int64_t>(num_slices)) +
                              " slices, at most " + std::to_string(most) +
                              " slices can be simulated; larger slices are fewer");
}

class Run {
 public:
  Run(const Workload& workload, const Network& network, double chunk_nbytes, double slice_nbytes,
      int num_slices)
      : tasks_(workload.tasks),
        sends_(workload.sends),
        network_(network),
        chunk_nbytes_(chunk_nbytes),
        slice_nbytes_(slice_nbytes),
        num_slices_(num_slices),
        progress_(tasks_.size() * num_slices),
        sending_(workload.num_ports),
        receiving_(workload.num_ports),
        reducing_(workload.orbits.count()),
        flows_(workload.orbits.count(), network.egress, network.ingress, network.inside.bandwidth) {
  }

  double finish() {
    for (int task = 0; task < std::ssize(tasks_); ++task) {
      for (int slice = 0; slice < num_slices_; ++slice) {
        progress_of(task, slice).awaited = tasks_[task].num_recvs + 1;
        if (tasks_[task].step == 0) push_task(0, kBegins, task, slice);
      }
    }
    std::size_t num_done = 0;
    while (let_flow() || !events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      switch (event.kind) {
        case kBegins:
          begin(event);
          break;
        case kLeaves:
          leave(event);
          break;
        case kArrives:
          arrive(event);
          break;
        case kHasArrived:
          settle(event, event.time);
          break;
        case kReduces:
          reduce(event);
          ++num_done;
          break;
      }
    }
    if (num_done < progress_.size()) {
      throw PlanError("deadlock: some ranks wait for ever; verify says which");
    }
    return end_;
  }

 private:
  enum Kind { kBegins, kLeaves, kArrives, kHasArrived, kReduces };
  struct Event {
    double time;
    int step, slice;
    Kind kind;
    std::uint64_t tie;
    int task;
    int send;  // of kLeaves, kArrives and kHasArrived

    bool operator<(const Event& other) const {  // a heap has the largest on top
      return std::tie(time, step, slice, kind, tie) >
             std::tie(other.time, other.step, other.slice, other.kind, other.tie);
    }
  };
  // How many things a slice of a task still awaits (its begin is one), and when the last one ended.
  struct Progress {
    double latest = 0;
    int awaited = 0;
  };

  Progress& progress_of(int task, int slice) {
    return progress_[static_cast<std::size_t>(task) * num_slices_ + slice];
  }

  double nbytes(std::int64_t num_chunks, int slice) const {
    return static_cast<double>(num_chunks) *
           std::min(slice_nbytes_, chunk_nbytes_ - slice * slice_nbytes_);
  }

  double occupied(const Workload::Send& send, int slice) const {
    const Link& link = send.across ? network_.across : network_.inside;
    return link.overhead + nbytes(send.num_chunks, slice) / link.bandwidth;
  }

  void push_task(double time, Kind kind, int task, int slice) {
    const Workload::Task& t = tasks_[task];
    events_.push({time, t.step, slice, kind, static_cast<std::uint64_t>(t.rank), task, -1});
  }

  // Serves a request made at `time` and returns when that is over.
  static double serve(double& free, double time, double duration) {
    return free = std::max(free, time) + duration;
  }

  void begin(const Event& event) {
    const Workload::Task& task = tasks_[event.task];
    double left = event.time;
    for (int i = task.first_send; i < task.first_send + task.num_sends; ++i) {
      const Workload::Send& send = sends_[i];
      if (network_.shares() && !send.across) continue;
      const double duration = occupied(send, event.slice);
      left = serve(sending_[send.from_port], event.time, duration);
      const double latency = (send.across ? network_.across : network_.inside).latency;
      events_.push({left - duration + latency, tasks_[send.task].step, event.slice, kArrives,
                    send.tie, send.task, i});
    }
    note(event, left);
    next_leaves(event, task.first_send);
  }

  // The first message from sends_[i] on that shares limits; without one, the sends are over.
  void next_leaves(const Event& event, int i) {
    const Workload::Task& task = tasks_[event.task];
    const int end = task.first_send + task.num_sends;
    while (i < end && (!network_.shares() || sends_[i].across)) ++i;
    if (i == end) return settle(event, event.time);
    events_.push({event.time + network_.inside.overhead, task.step, event.slice, kLeaves,
                  static_cast<std::uint64_t>(task.rank), event.task, i});
  }

  void leave(const Event& event) {
    const Workload::Send& send = sends_[event.send];
    flows_.begin(send.from_port, send.to_port, nbytes(send.num_chunks, event.slice),
                 static_cast<int>(left_.size()));
    left_.push_back(event);
  }

  // Until the next event, which there is then, or none and nothing that flows.
  bool let_flow() {
    while (network_.shares()) {
      const double next =
          events_.empty() ? std::numeric_limits<double>::infinity() : events_.top().time;
      if (next <= flowed_until_) return true;
      const double end = flows_.until_next_end();
      if (std::isinf(next) && std::isinf(end)) return false;
      const bool ends = end <= next - flowed_until_;
      const std::vector<int> ended = flows_.pass(ends ? end : next - flowed_until_);
      flowed_until_ = ends ? flowed_until_ + end : next;
      for (const int id : ended) hand_over(left_[id]);
    }
    return false;
  }

  // The last byte of what left has left.
  void hand_over(Event event) {
    const Workload::Send& send = sends_[event.send];
    event.time = flowed_until_;
    events_.push({event.time + network_.inside.latency, tasks_[send.task].step, event.slice,
                  kHasArrived, send.tie, send.task, event.send});
    next_leaves(event, event.send + 1);
  }

  void arrive(const Event& event) {
    const Workload::Send& send = sends_[event.send];
    settle(event, serve(receiving_[send.to_port], event.time, occupied(send, event.slice)));
  }

  void note(const Event& event, double time) {
    Progress& progress = progress_of(event.task, event.slice);
    progress.latest = std::max(progress.latest, time);
  }

  void settle(const Event& event, double time) {
    note(event, time);
    Progress& progress = progress_of(event.task, event.slice);
    if (--progress.awaited == 0) push_task(progress.latest, kReduces, event.task, event.slice);
  }

  void reduce(const Event& event) {
    const Workload::Task& task = tasks_[event.task];
    double done = event.time;
    if (task.reduced_chunks > 0) {
      done = serve(reducing_[task.rank], event.time,
                   nbytes(task.reduced_chunks, event.slice) / network_.reduce_bandwidth);
    }
    if (task.last) {
      end_ = std::max(end_, done);
    } else {
      push_task(done, kBegins, event.task + 1, event.slice);
    }
  }

  const std::vector<Workload::Task>& tasks_;
  const std::vector<Workload::Send>& sends_;
  const Network& network_;
  const double chunk_nbytes_;
  const double slice_nbytes_;
  const int num_slices_;
  std::vector<Progress> progress_;
  std::vector<double> sending_, receiving_, reducing_;  // when each port and engine is free
  std::priority_queue<Event> events_;
  FairFlows flows_;
  std::vector<Event> left_;  // by the ids of flows
  double flowed_until_ = 0;
  double end_ = 0;
};

}  // namespace

Simulator::Simulator(int world_size, const std::function<Plan(int rank)>& plan_of,
                     const Network& network, const std::vector<int>& compared)
    : world_size_(world_size),
      network_(network),
      workload_(std::make_shared<Workload>(make_workload(world_size, plan_of, network, compared))) {
}

Simulation Simulator::run(double nbytes, double slice_nbytes) const {
  if (!std::isfinite(nbytes) || nbytes < 0) {
    throw std::invalid_argument("nbytes must be a number from 0, got " + std::to_string(nbytes));
  }
  if (!(slice_nbytes > 0)) {
    throw std::invalid_argument("slice_nbytes must be above 0, got " +
                                std::to_string(slice_nbytes));
  }
  const double chunk_nbytes = workload_->num_chunks == 0 ? 0 : nbytes / workload_->num_chunks;
  // A rounding error is no slice.
  const double num_slices = std::max(1.0, std::ceil(chunk_nbytes / slice_nbytes - 1e-9));
  check_slices(workload_->tasks.size(), "steps", num_slices, kMaxSlices);
  check_slices(workload_->sends.size(), "messages", num_slices, kMaxMessages);
  const int slices = static_cast<int>(num_slices);
  Run run(*workload_, network_, chunk_nbytes, std::min(slice_nbytes, std::max(chunk_nbytes, 1.0)),
          slices);
  return {.seconds = run.finish(),
          .num_messages = static_cast<std::int64_t>(workload_->sends.size()) * slices *
                          (world_size_ / workload_->orbits.count()),
          .ranks_simulated = workload_->orbits.count()};
}

}  // namespace ringcomm
