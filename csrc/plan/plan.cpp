#include "plan/plan.h"

#include <cstdint>
#include <iterator>

namespace ringcomm {
namespace {

void check_index(const char* name, int value, int world_size) {
  constexpr int kMaxWorldSize = 1 << 30;
  if (world_size < 1 || world_size > kMaxWorldSize) {
    throw std::invalid_argument("world_size must be between 1 and " +
                                std::to_string(kMaxWorldSize) + ", got " +
                                std::to_string(world_size));
  }
  if (value < 0 || value >= world_size) {
    throw std::invalid_argument(std::string(name) + " must be between 0 and " +
                                std::to_string(world_size - 1) + " in a group of " +
                                std::to_string(world_size) + ", got " + std::to_string(value));
  }
}

std::string describe(int rank, int step, const Transfer& transfer, const char* verb,
                     const char* preposition) {
  return describe_place(rank, step) + verb + " " +
         describe_chunks(transfer.first_chunk, transfer.num_chunks) + " " + preposition + " rank " +
         std::to_string(transfer.peer);
}

// What is wrong with the transfer, or an empty text.
std::string fault_of(const Transfer& transfer, bool is_send, int rank, int world_size,
                     int num_chunks) {
  if (transfer.peer < 0 || transfer.peer >= world_size) {
    return ", in a group of " + std::to_string(world_size);
  }
  if (transfer.peer == rank) return ", which is itself";
  if (transfer.first_chunk < 0 || transfer.num_chunks < 0 ||
      transfer.first_chunk > num_chunks - transfer.num_chunks) {
    return ", of " + std::to_string(num_chunks) + " chunks";
  }
  if (is_send && transfer.reduce) return " with reduce, which is for receives only";
  return "";
}

}  // namespace

Plan then(Plan first, Plan second) {
  if (first.num_chunks != second.num_chunks) {
    throw std::invalid_argument("a plan of " + std::to_string(first.num_chunks) +
                                " chunks cannot be followed by one of " +
                                std::to_string(second.num_chunks));
  }
  first.steps.insert(first.steps.end(), std::make_move_iterator(second.steps.begin()),
                     std::make_move_iterator(second.steps.end()));
  return first;
}

void check_rank(int rank, int world_size) { check_index("rank", rank, world_size); }

void check_root(int root, int world_size) { check_index("root", root, world_size); }

void check_square(int world_size) {
  constexpr int kLargest = 46340;
  if (world_size > kLargest) {
    throw std::invalid_argument("all_to_all takes a world_size of at most " +
                                std::to_string(kLargest) + ", got " + std::to_string(world_size));
  }
}

void check_plan(const Plan& plan, int rank, int world_size, int num_chunks) {
  const std::string holder = "rank " + std::to_string(rank) + " has a plan of " +
                             std::to_string(plan.num_chunks) + " chunks, ";
  if (plan.num_chunks < 0) throw PlanError(holder + "and 0 is the least");
  if (plan.num_chunks != num_chunks) {
    throw PlanError(holder + "rank 0 one of " + std::to_string(num_chunks));
  }
  for (int step = 0; step < static_cast<int>(plan.steps.size()); ++step) {
    for (const Transfer& send : plan.steps[step].sends) {
      const std::string fault = fault_of(send, /*is_send=*/true, rank, world_size, num_chunks);
      if (!fault.empty()) throw PlanError(describe_send(rank, step, send) + fault);
    }
    for (const Transfer& recv : plan.steps[step].recvs) {
      const std::string fault = fault_of(recv, /*is_send=*/false, rank, world_size, num_chunks);
      if (!fault.empty()) throw PlanError(describe_recv(rank, step, recv) + fault);
    }
  }
}

std::string describe_place(int rank, int step) {
  return "rank " + std::to_string(rank) + ", step " + std::to_string(step) + ": ";
}

std::string describe_chunks(int first_chunk, int num_chunks) {
  if (num_chunks <= 0) return "no chunk";
  if (num_chunks == 1) return "chunk " + std::to_string(first_chunk);
  return "chunks " + std::to_string(first_chunk) + "-" +
         std::to_string(std::int64_t{first_chunk} + num_chunks - 1);
}

std::string describe_send(int rank, int step, const Transfer& send) {
  return describe(rank, step, send, "sends", "to");
}

std::string describe_recv(int rank, int step, const Transfer& recv) {
  return describe(rank, step, recv, "receives", "from");
}

}  // namespace ringcomm
