#include "plan/matching.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <tuple>
#include <utility>

namespace ringcomm {
namespace {

constexpr std::size_t kMostPaired = std::size_t{1} << 24;

// A send or a receive of one rank's plan.
struct End {
  int rank, step;
  Transfer transfer;
};

std::string describe(const End& end, const char* verb, const char* preposition) {
  return describe_place(end.rank, end.step) + verb + " " +
         describe_chunks(end.transfer.first_chunk, end.transfer.num_chunks) + " " + preposition +
         " rank " + std::to_string(end.transfer.peer);
}

std::string describe_send(const End& send) { return describe(send, "sends", "to"); }
std::string describe_recv(const End& recv) { return describe(recv, "receives", "from"); }

void check_transfer(const End& end, bool is_send, int world_size, int num_chunks) {
  const Transfer& transfer = end.transfer;
  const auto error = [&](const std::string& what) {
    return PlanError((is_send ? describe_send(end) : describe_recv(end)) + what);
  };
  if (transfer.peer < 0 || transfer.peer >= world_size) {
    throw error(", in a group of " + std::to_string(world_size));
  }
  if (transfer.peer == end.rank) throw error(", which is itself");
  if (transfer.first_chunk < 0 || transfer.num_chunks < 0 ||
      transfer.first_chunk > num_chunks - transfer.num_chunks) {
    throw error(", of " + std::to_string(num_chunks) + " chunks");
  }
  if (is_send && transfer.reduce) throw error(" with reduce, which is for receives only");
}

struct Ends {
  int num_chunks = 0;
  std::vector<End> sends, recvs;
};

void check_number(const std::vector<End>& ends) {
  if (ends.size() <= kMostPaired) return;
  throw PlanError("there are more than " + std::to_string(kMostPaired) +
                  " transfers to pair; fewer ranks, or fewer transfers, would do");
}

Ends collect(int world_size, const std::function<Plan(int rank)>& plan_of,
             const std::function<bool(const Transfer&)>& followed) {
  Ends ends;
  for (int rank = 0; rank < world_size; ++rank) {
    const Plan plan = plan_of(rank);
    if (rank == 0) ends.num_chunks = plan.num_chunks;
    check_plan(plan, rank, world_size, ends.num_chunks);
    for (int step = 0; step < static_cast<int>(plan.steps.size()); ++step) {
      for (const Transfer& send : plan.steps[step].sends) {
        if (followed(send)) ends.sends.push_back({rank, step, send});
      }
      for (const Transfer& recv : plan.steps[step].recvs) {
        if (followed(recv)) ends.recvs.push_back({rank, step, recv});
      }
    }
    check_number(ends.sends);
    check_number(ends.recvs);
  }
  return ends;
}

// Sorts by key(end), a rank, and keeps the order of ends with the same one.
template <typename Key>
void sort_by_rank(std::vector<End>& ends, int world_size, const Key& key) {
  std::vector<std::size_t> next(world_size + 1);
  for (const End& end : ends) ++next[key(end) + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  std::vector<End> sorted(ends.size());
  for (const End& end : ends) sorted[next[key(end)]++] = end;
  ends = std::move(sorted);
}

}  // namespace

std::string describe_place(int rank, int step) {
  return "rank " + std::to_string(rank) + ", step " + std::to_string(step) + ": ";
}

std::string describe_chunks(int first_chunk, int num_chunks) {
  if (num_chunks <= 0) return "no chunk";
  if (num_chunks == 1) return "chunk " + std::to_string(first_chunk);
  return "chunks " + std::to_string(first_chunk) + "-" +
         std::to_string(std::int64_t{first_chunk} + num_chunks - 1);
}

void check_plan(const Plan& plan, int rank, int world_size, int num_chunks) {
  if (plan.num_chunks < 0) {
    throw PlanError("rank " + std::to_string(rank) + " has a plan of " +
                    std::to_string(plan.num_chunks) + " chunks, and 0 is the least");
  }
  if (plan.num_chunks != num_chunks) {
    throw PlanError("rank " + std::to_string(rank) + " has a plan of " +
                    std::to_string(plan.num_chunks) + " chunks, rank 0 one of " +
                    std::to_string(num_chunks));
  }
  for (int step = 0; step < static_cast<int>(plan.steps.size()); ++step) {
    for (const Transfer& send : plan.steps[step].sends) {
      check_transfer({rank, step, send}, /*is_send=*/true, world_size, num_chunks);
    }
    for (const Transfer& recv : plan.steps[step].recvs) {
      check_transfer({rank, step, recv}, /*is_send=*/false, world_size, num_chunks);
    }
  }
}

Traffic match(int world_size, const std::function<Plan(int rank)>& plan_of,
              const std::function<bool(const Transfer&)>& followed) {
  Ends ends = collect(world_size, plan_of, followed);
  // They are in the order of their ranks, and for each pair of ranks in that of the steps.
  const auto send_key = [](const End& end) { return std::pair(end.rank, end.transfer.peer); };
  const auto recv_key = [](const End& end) { return std::pair(end.transfer.peer, end.rank); };
  const auto peer_of = [](const End& end) { return end.transfer.peer; };
  sort_by_rank(ends.sends, world_size, peer_of);
  sort_by_rank(ends.sends, world_size, [](const End& end) { return end.rank; });
  sort_by_rank(ends.recvs, world_size, peer_of);

  Traffic traffic{.num_chunks = ends.num_chunks, .pairings = {}};
  traffic.pairings.reserve(ends.sends.size());
  auto send = ends.sends.begin();
  auto recv = ends.recvs.begin();
  while (send != ends.sends.end() || recv != ends.recvs.end()) {
    if (recv == ends.recvs.end() ||
        (send != ends.sends.end() && send_key(*send) < recv_key(*recv))) {
      throw PlanError(describe_send(*send) + ", which does not receive it");
    }
    if (send == ends.sends.end() || recv_key(*recv) < send_key(*send)) {
      throw PlanError(describe_recv(*recv) + ", which does not send it");
    }
    const Transfer& sent = send->transfer;
    const Transfer& received = recv->transfer;
    if (std::tie(sent.first_chunk, sent.num_chunks) !=
        std::tie(received.first_chunk, received.num_chunks)) {
      throw PlanError(describe_send(*send) + ", which at its step " + std::to_string(recv->step) +
                      " receives " + describe_chunks(received.first_chunk, received.num_chunks) +
                      " from it");
    }
    traffic.pairings.push_back({.sender = send->rank,
                                .send_step = send->step,
                                .receiver = recv->rank,
                                .recv_step = recv->step,
                                .first_chunk = sent.first_chunk,
                                .num_chunks = sent.num_chunks,
                                .reduce = received.reduce});
    ++send;
    ++recv;
  }
  return traffic;
}

}  // namespace ringcomm
