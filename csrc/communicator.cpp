#include "communicator.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "plan/chain.h"
#include "plan/collective.h"
#include "plan/direct.h"
#include "plan/ring.h"
#include "plan/rooted.h"
#include "shm/monitored_barrier.h"

namespace ringcomm {
namespace {

int checked_world_size(int world_size) {
  if (world_size < 1 || world_size > kMaxWorldSize) {
    throw Error(ErrorKind::kInvalidArgument, "world_size is " + std::to_string(world_size) +
                                                 "; ranks sharing memory can be 1 to " +
                                                 std::to_string(kMaxWorldSize));
  }
  return world_size;
}

int checked_rank(int rank, int world_size) {
  if (rank < 0 || rank >= world_size) {
    throw Error(ErrorKind::kInvalidArgument,
                "rank is " + std::to_string(rank) +
                    "; it must be 0 to world_size - 1 = " + std::to_string(world_size - 1));
  }
  return rank;
}

// Rings pass data on from neighbour to neighbour; direct plans send it where it is wanted. What
// only moves from or to one rank is the same in both.
Plan make_plan(Collective collective, Algorithm algorithm, int rank, int n, int root) {
  const bool ring = algorithm == Algorithm::kRing;
  switch (collective) {
    case Collective::kAllReduce:
      return ring ? ring_all_reduce(rank, n) : direct_all_reduce(rank, n);
    case Collective::kReduceScatter:
      return ring ? ring_reduce_scatter(rank, n) : direct_reduce_scatter(rank, n);
    case Collective::kAllGather:
      return ring ? ring_all_gather(rank, n) : direct_all_gather(rank, n);
    case Collective::kBroadcast:
      return ring ? chain_broadcast(rank, n, root) : direct_broadcast(rank, n, root);
    case Collective::kReduce:
      return ring ? chain_reduce(rank, n, root) : direct_reduce(rank, n, root);
    case Collective::kGather:
      return gather(rank, n, root);
    case Collective::kScatter:
      return scatter(rank, n, root);
    case Collective::kAllToAll:
      return all_to_all(rank, n);
    case Collective::kBarrier:
      break;  // an exchange without a payload
  }
  throw std::logic_error(std::string("no program for ") + to_string(collective));
}

}  // namespace

Communicator::Communicator(Store& store, int rank, int world_size, Algorithm algorithm,
                           Timeout timeout)
    : group_(store, checked_rank(rank, checked_world_size(world_size)), world_size, timeout),
      exchange_(group_),
      executor_(group_),
      mail_(group_),
      algorithm_(algorithm) {}

void Communicator::close(const std::string& reason) {
  group_.close(reason);
  mail_.close(reason);
}

void Communicator::abort(const std::string& reason) {
  group_.fail(ErrorKind::kClosed, reason);
  close(reason);
}

void Communicator::monitored_barrier(bool wait_all_ranks, Timeout timeout) {
  shm::monitored_barrier(group_, ++barriers_, wait_all_ranks, shm::Deadline::in(timeout));
}

// 16- and 8-bit floats lose a little with every rounding, and a direct plan rounds once where a
// ring rounds at every hop. With full precision the two are equally good, and the ring keeps to two
// neighbours.
Algorithm Communicator::choose(DType dtype) const {
  if (algorithm_ != Algorithm::kAuto) return algorithm_;
  return element_size(dtype) < 4 ? Algorithm::kDirect : Algorithm::kRing;
}

bool Communicator::is_eager(std::size_t count, DType dtype) const {
  return count <= group_.geometry().eager_nbytes / element_size(dtype);
}

const Program& Communicator::program(const Call& call) {
  const auto algorithm = static_cast<Algorithm>(call.algorithm);
  const auto key = std::make_tuple(call.collective, algorithm, call.root);
  const auto known = programs_.find(key);
  if (known != programs_.end()) return known->second;

  auto plan_of = [&](int r) {
    return make_plan(call.collective, algorithm, r, world_size(), call.root);
  };
  const int num_chunks = plan_of(rank()).num_chunks;
  const Contract contract(call.collective, world_size(), num_chunks, std::max(call.root, 0));
  std::vector<bool> inputs(num_chunks), outputs(num_chunks);
  for (int c = 0; c < num_chunks; ++c) inputs[c] = !contract.before(rank(), c).empty();
  for (int c : contract.promised_chunks(rank())) outputs[c] = true;
  return programs_.emplace(key, compile(plan_of, rank(), world_size(), inputs, outputs))
      .first->second;
}

Call Communicator::make_call(Collective collective, std::size_t count, DType dtype) const {
  Call call;
  call.collective = collective;
  call.count = count;
  call.dtype = dtype;
  call.algorithm = static_cast<std::uint8_t>(choose(dtype));
  return call;
}

Call Communicator::make_call(Collective collective, std::size_t count, const Reduce& reduce) const {
  Call call = make_call(collective, count, reduce.dtype);
  call.reduces = 1;
  call.op = reduce.op;
  if (!supports(reduce.dtype, reduce.op)) {
    throw Error(ErrorKind::kInvalidArgument, std::string(to_string(collective)) +
                                                 ": op=" + name(reduce.op) +
                                                 " is not defined for dtype=" + name(reduce.dtype));
  }
  return call;
}

Reduction Communicator::reduction_of(const Reduce& reduce) const {
  Reduction reduction{.dtype = reduce.dtype, .op = reduce.op};
  if (reduce.op == ReduceOp::kAvg) reduction.divisor = world_size();
  if (reduce.op == ReduceOp::kPremulSum) reduction.factor = reduce.factor;
  return reduction;
}

void Communicator::check_root(const Call& call) const {
  if (call.root >= 0 && call.root < world_size()) return;
  throw Error(ErrorKind::kInvalidArgument,
              std::string(to_string(call.collective)) + ": root is " + std::to_string(call.root) +
                  "; it must be a rank of the group, 0 to " + std::to_string(world_size() - 1));
}

void Communicator::run(Call& call, const Reduction& reduction, const shm::Deadline& deadline) {
  exchange_.begin(call);
  exchange_.announce(call);
  exchange_.await_all(deadline);
  executor_.run(program(call), chunks_, reduction, call, deadline);
  exchange_.end();
}

std::size_t Communicator::write_contribution(std::byte* to, Input input,
                                             const Reduction& reduction) {
  const std::size_t nbytes = input.count * element_size(reduction.dtype);
  if (reduction.op == ReduceOp::kPremulSum) {
    Reduction scaling = reduction;
    scaling.scaled_input = 0;
    void* output = to;
    reduce_host(scaling, &input.data, 1, &output, 1, input.count);
  } else if (nbytes > 0) {
    std::memcpy(to, input.data, nbytes);
  }
  return nbytes;
}

void Communicator::reduce_payloads(std::size_t offset_nbytes, Output output, Reduction reduction) {
  payloads_.clear();
  for (int r = 0; r < world_size(); ++r) {
    payloads_.push_back(exchange_.payload_of(r) + offset_nbytes);
  }
  reduce_host(reduction, payloads_.data(), world_size(), &output.data, 1, output.count);
}

}  // namespace ringcomm
