#include "plan/workload.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_map>

namespace ringcomm {

Orbits::Orbits(Symmetry symmetry, int world_size, int ranks_per_host)
    : symmetry_(symmetry), world_size_(world_size), ranks_per_host_(ranks_per_host) {}

int Orbits::count() const {
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

int Orbits::representative(int rank) const { return shifted(rank, rank); }

int Orbits::shifted(int rank, int reference) const {
  if (symmetry_ == Symmetry::kNone) return rank;
  const int hosts = world_size_ / ranks_per_host_;
  const int host = (rank / ranks_per_host_ - reference / ranks_per_host_ + hosts) % hosts;
  int local = rank % ranks_per_host_;
  if (symmetry_ == Symmetry::kGrid) {
    local = (local - reference % ranks_per_host_ + ranks_per_host_) % ranks_per_host_;
  }
  return host * ranks_per_host_ + local;
}

bool Orbits::agree(const Plan& expected, int rank, const Plan& plan) const {
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
  return std::ranges::equal(plan.steps, expected.steps, [&](const Step& mine, const Step& theirs) {
    return same(mine.sends, theirs.sends, /*ordered=*/true) &&
           same(mine.recvs, theirs.recvs, /*ordered=*/false);
  });
}

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

}  // namespace

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

}  // namespace ringcomm
