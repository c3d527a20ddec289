#include "plan/simulate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "plan/fair_flows.h"
#include "plan/plan.h"

namespace ringcomm {
namespace {

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
      workload_(make_workload(world_size, plan_of, network, compared)) {}

Simulation Simulator::run(double nbytes, double slice_nbytes) const {
  if (!std::isfinite(nbytes) || nbytes < 0) {
    throw std::invalid_argument("nbytes must be a number from 0, got " + std::to_string(nbytes));
  }
  if (!(slice_nbytes > 0)) {
    throw std::invalid_argument("slice_nbytes must be above 0, got " +
                                std::to_string(slice_nbytes));
  }
  const double chunk_nbytes = workload_.num_chunks == 0 ? 0 : nbytes / workload_.num_chunks;
  // A rounding error is no slice.
  const double num_slices = std::max(1.0, std::ceil(chunk_nbytes / slice_nbytes - 1e-9));
  check_slices(workload_.tasks.size(), "steps", num_slices, kMaxSlices);
  check_slices(workload_.sends.size(), "messages", num_slices, kMaxMessages);
  const int slices = static_cast<int>(num_slices);
  Run run(workload_, network_, chunk_nbytes, std::min(slice_nbytes, std::max(chunk_nbytes, 1.0)),
          slices);
  return {.seconds = run.finish(),
          .num_messages = static_cast<std::int64_t>(workload_.sends.size()) * slices *
                          (world_size_ / workload_.orbits.count()),
          .ranks_simulated = workload_.orbits.count()};
}

}  // namespace ringcomm
