#include "plan/collective.h"

#include <stdexcept>
#include <string>

#include "plan/arguments.h"

namespace ringcomm {

const char* to_string(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kReduce:
      return "reduce";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kGather:
      return "gather";
    case Collective::kScatter:
      return "scatter";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kAllToAll:
      return "all_to_all";
    case Collective::kBarrier:
      return "barrier";
  }
  throw std::invalid_argument("no collective has the number " +
                              std::to_string(static_cast<int>(collective)));
}

bool is_reduction(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduceScatter ||
         collective == Collective::kReduce;
}

bool has_root(Collective collective) {
  return collective == Collective::kReduce || collective == Collective::kGather ||
         collective == Collective::kScatter || collective == Collective::kBroadcast;
}

Contract::Contract(Collective collective, int world_size, int num_chunks, int root)
    : collective_(collective), world_size_(world_size), num_chunks_(num_chunks), root_(root) {
  check_root(root, world_size);
  std::string wanted;
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast:
      if (num_chunks < 1) wanted = "at least one chunk";
      break;
    case Collective::kReduceScatter:
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kScatter:
      if (num_chunks < 1 || num_chunks % world_size != 0)
        wanted = "a multiple of world_size chunks";
      break;
    case Collective::kAllToAll:
      if (num_chunks % world_size != 0 || num_chunks / world_size != world_size) {
        wanted = "world_size*world_size chunks";
      }
      break;
    case Collective::kBarrier:
      if (num_chunks != 0) wanted = "no chunks";
      break;
  }
  if (!wanted.empty()) {
    throw std::invalid_argument(std::string(to_string(collective)) + " takes " + wanted + ", got " +
                                std::to_string(num_chunks) + " chunks for a world_size of " +
                                std::to_string(world_size));
  }
}

RankSet Contract::before(int rank, int chunk) const {
  return holds_before(rank, chunk) ? RankSet::single(rank) : RankSet();
}

bool Contract::holds_before(int rank, int chunk) const {
  switch (collective_) {
    case Collective::kAllReduce:
    case Collective::kReduceScatter:
    case Collective::kReduce:
    case Collective::kBarrier:
      return true;
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kAllToAll:
      return owner(chunk) == rank;
    case Collective::kScatter:
    case Collective::kBroadcast:
      return rank == root_;
  }
  throw std::logic_error("a collective without a contract");
}

std::vector<int> Contract::promised_chunks(int rank) const {
  int first = 0, stride = 1, count = num_chunks_;
  switch (collective_) {
    case Collective::kAllReduce:
    case Collective::kAllGather:
    case Collective::kBroadcast:
      break;
    case Collective::kReduceScatter:
    case Collective::kScatter:
      count = num_chunks_ / world_size_;
      first = rank * count;
      break;
    case Collective::kReduce:
    case Collective::kGather:
      if (rank != root_) count = 0;
      break;
    case Collective::kAllToAll:
      first = rank;
      stride = world_size_;
      count = world_size_;
      break;
    case Collective::kBarrier:
      count = 1;
      break;
  }
  std::vector<int> chunks(count);
  for (int i = 0; i < count; ++i) chunks[i] = first + i * stride;
  return chunks;
}

bool Contract::promises(int rank, int chunk) const {
  switch (collective_) {
    case Collective::kAllReduce:
    case Collective::kAllGather:
    case Collective::kBroadcast:
    case Collective::kBarrier:
      return true;
    case Collective::kReduceScatter:
    case Collective::kScatter:
      return owner(chunk) == rank;
    case Collective::kReduce:
    case Collective::kGather:
      return rank == root_;
    case Collective::kAllToAll:
      return chunk % world_size_ == rank;
  }
  throw std::logic_error("a collective without a contract");
}

std::int64_t Contract::num_promised() const {
  const std::int64_t num_chunks = num_chunks_;
  switch (collective_) {
    case Collective::kAllReduce:
    case Collective::kAllGather:
    case Collective::kBroadcast:
      return num_chunks * world_size_;
    case Collective::kReduceScatter:
    case Collective::kScatter:
    case Collective::kReduce:
    case Collective::kGather:
    case Collective::kAllToAll:
      return num_chunks;
    case Collective::kBarrier:
      return world_size_;
  }
  throw std::logic_error("a collective without a contract");
}

RankSet Contract::after(int chunk) const {
  switch (collective_) {
    case Collective::kAllReduce:
    case Collective::kReduceScatter:
    case Collective::kReduce:
    case Collective::kBarrier:
      return RankSet::range(0, world_size_);
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kAllToAll:
      return RankSet::single(owner(chunk));
    case Collective::kScatter:
    case Collective::kBroadcast:
      return RankSet::single(root_);
  }
  throw std::logic_error("a collective without a contract");
}

}  // namespace ringcomm
