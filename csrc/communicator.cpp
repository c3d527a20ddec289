#include "communicator.h"

#include <algorithm>
#include <cstring>

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

}  // namespace

Communicator::Communicator(Store& store, int rank, int world_size, Algorithm algorithm,
                           Timeout timeout)
    : group_(store, checked_rank(rank, checked_world_size(world_size)), world_size, timeout),
      exchange_(group_),
      executor_(group_),
      mail_(group_),
      algorithm_(algorithm),
      programs_(rank, world_size) {}

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
