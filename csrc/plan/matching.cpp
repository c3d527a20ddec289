#include "plan/matching.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>

namespace ringcomm {
namespace {

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
  const std::string text = is_send ? describe_send(end) : describe_recv(end);
  if (transfer.peer < 0 || transfer.peer >= world_size) {
    throw PlanError(text + ", in a group of " + std::to_string(world_size));
  }
  if (transfer.peer == end.rank) throw PlanError(text + ", which is itself");
  if (transfer.first_chunk < 0 || transfer.num_chunks < 0 ||
      transfer.first_chunk > num_chunks - transfer.num_chunks) {
    throw PlanError(text + ", of " + std::to_string(num_chunks) + " chunks");
  }
  if (is_send && transfer.reduce)
    throw PlanError(text + " with reduce, which is for receives only");
}

struct Ends {
  int num_chunks = 0;
  std::vector<End> sends, recvs;
};

Ends collect(int world_size, const std::function<Plan(int rank)>& plan_of,
             const std::function<bool(const Transfer&)>& followed) {
  Ends ends;
  for (int rank = 0; rank < world_size; ++rank) {
    const Plan plan = plan_of(rank);
    if (rank == 0) ends.num_chunks = plan.num_chunks;
    if (plan.num_chunks != ends.num_chunks) {
      throw PlanError("rank " + std::to_string(rank) + " has a plan of " +
                      std::to_string(plan.num_chunks) + " chunks, rank 0 one of " +
                      std::to_string(ends.num_chunks));
    }
    for (int step = 0; step < static_cast<int>(plan.steps.size()); ++step) {
      for (const bool is_send : {true, false}) {
        const auto& transfers = is_send ? plan.steps[step].sends : plan.steps[step].recvs;
        for (const Transfer& transfer : transfers) {
          if (!followed(transfer)) continue;
          const End end{rank, step, transfer};
          check_transfer(end, is_send, world_size, ends.num_chunks);
          (is_send ? ends.sends : ends.recvs).push_back(end);
        }
      }
    }
  }
  return ends;
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

Traffic match(int world_size, const std::function<Plan(int rank)>& plan_of,
              const std::function<bool(const Transfer&)>& followed) {
  Ends ends = collect(world_size, plan_of, followed);
  // Sorted by sender, then receiver; a stable sort keeps each pair's order over its steps.
  const auto send_key = [](const End& end) { return std::pair(end.rank, end.transfer.peer); };
  const auto recv_key = [](const End& end) { return std::pair(end.transfer.peer, end.rank); };
  std::ranges::stable_sort(ends.sends, {}, send_key);
  std::ranges::stable_sort(ends.recvs, {}, recv_key);

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
