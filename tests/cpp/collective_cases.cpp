#include "collective_cases.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "check.h"
#include "reference.h"
#include "shm/arena.h"

namespace cases {

std::string Case::name(int world_size) const {
  std::string text = std::string(to_string(collective)) + ", " + std::to_string(world_size) +
                     " ranks, " + ringcomm::name(dtype) + ", " + ringcomm::name(op) + ", root " +
                     std::to_string(root) + (in_place ? ", in place" : "") + ", counts";
  for (std::size_t i = 0; i < counts.size() && i < 16; ++i) {
    text += " " + std::to_string(counts[i]);
  }
  return text;
}

bool reduces(Collective c) {
  return c == Collective::kAllReduce || c == Collective::kReduceScatter || c == Collective::kReduce;
}

namespace {

bool rooted(Collective c) {
  return c == Collective::kReduce || c == Collective::kBroadcast || c == Collective::kGather ||
         c == Collective::kScatter;
}

bool per_rank(Collective c) {
  return c == Collective::kReduceScatter || c == Collective::kAllGather;
}

// The factor of premul_sum, different on every rank: a power of two, and 3/8 of an ulp more, which
// rounding takes away from what a rank contributes. A sum that it came to has other bits.
double factor_of(DType dtype, int rank) {
  double ulp = 0;
  if (dtype == DType::kFloat16) ulp = 0x1p-10;
  if (dtype == DType::kBFloat16) ulp = 0x1p-7;
  if (dtype == DType::kFloat8E4M3FN) ulp = 0x1p-3;
  if (dtype == DType::kFloat8E5M2) ulp = 0x1p-2;
  return std::vector<double>{1, 0.5, 2}[rank % 3] * (1 + 0.375 * ulp);
}

// What is moved may be any bits. What is reduced must not depend on the order: integers do not, nor
// do min and max, and sums and products of floats are exact because few ranks have more than the
// neutral element.
std::uint64_t element(const Case& c, int rank, int world_size, std::size_t index,
                      std::mt19937_64& random) {
  const std::uint64_t bits = random() >> (64 - 8 * element_size(c.dtype));
  if (c.dtype == DType::kBool) return bits % 2;
  if (!reduces(c.collective) || !is_floating_point(c.dtype)) return bits;
  const double small = static_cast<double>(bits % 3) - 1;
  if (c.op == ReduceOp::kMin || c.op == ReduceOp::kMax) {
    return reference::from_double(c.dtype, static_cast<double>(bits % 101) - 50);
  }
  const bool contributes = (rank + index) % world_size < 3;
  if (c.op == ReduceOp::kProduct) {
    return reference::from_double(c.dtype, !contributes ? 1 : small == 0 ? 2 : small);
  }
  return reference::from_double(c.dtype, contributes ? small : 0);
}

std::byte* memory_for(std::size_t nbytes, bool in_arena) {
  if (!in_arena) return new std::byte[nbytes];
  return static_cast<std::byte*>(shm::Arena::of_this_process()->allocate(nbytes));
}

std::size_t phase_of(int block) { return 17 * block; }

}  // namespace

void make_data(Case& c, int world_size, std::mt19937_64& random) {
  c.inputs.assign(world_size, Pattern(kPeriod));
  for (int r = 0; r < world_size; ++r) {
    for (std::size_t i = 0; i < kPeriod; ++i) {
      c.inputs[r][i] = element(c, r, world_size, i, random);
    }
  }
  if (!reduces(c.collective)) return;
  c.reduced.resize(kPeriod);
  for (std::size_t i = 0; i < kPeriod; ++i) {
    std::vector<std::uint64_t> values;
    for (int r = 0; r < world_size; ++r) {
      std::uint64_t bits = c.inputs[r][i];
      if (c.op == ReduceOp::kPremulSum) {
        bits = reference::from_double(c.dtype,
                                      reference::to_double(c.dtype, bits) * factor_of(c.dtype, r));
      }
      values.push_back(bits);
    }
    const ReduceOp op = c.op == ReduceOp::kPremulSum ? ReduceOp::kSum : c.op;
    c.reduced[i] = reference::reduce({.dtype = c.dtype, .op = op, .divisor = world_size}, values);
  }
}

Buffer::Buffer(DType dtype, std::size_t count, bool in_arena)
    : width_(element_size(dtype)), count_(count), data_(memory_for(count * width_, in_arena)) {
  poison();
}

void Buffer::Free::operator()(std::byte* data) const {
  if (!shm::Arena::free(data)) delete[] data;
}

void Buffer::poison() { std::memset(data_.get(), 0xa5, count_ * width_); }

void Buffer::fill(const Pattern& pattern, std::size_t phase) {
  const std::vector<std::byte> period = bytes_of(pattern, phase);
  for (std::size_t at = 0; at < count_ * width_; at += period.size()) {
    std::memcpy(data_.get() + at, period.data(), std::min(period.size(), count_ * width_ - at));
  }
}

bool Buffer::holds(const Pattern& pattern, std::size_t phase) const {
  const std::vector<std::byte> period = bytes_of(pattern, phase);
  bool same = true;
  for (std::size_t at = 0; at < count_ * width_; at += period.size()) {
    const std::size_t nbytes = std::min(period.size(), count_ * width_ - at);
    same = same && std::memcmp(data_.get() + at, period.data(), nbytes) == 0;
  }
  return same;
}

std::vector<std::byte> Buffer::bytes_of(const Pattern& pattern, std::size_t phase) const {
  std::vector<std::byte> period(kPeriod * width_);
  for (std::size_t i = 0; i < kPeriod; ++i) {
    std::memcpy(period.data() + i * width_, &pattern[(i + phase) % kPeriod], width_);
  }
  return period;
}

Part::Part(const Case& c, int rank, int world_size)
    : case_(c), rank_(rank), world_size_(world_size) {
  const Collective which = c.collective;
  // What this rank has for each rank, or for all together; and what it gets from each, or in all.
  const bool divides = which == Collective::kReduceScatter || which == Collective::kScatter ||
                       which == Collective::kAllToAll;
  const bool collects = which == Collective::kAllGather || which == Collective::kGather ||
                        which == Collective::kAllToAll;
  if (which == Collective::kBarrier) return;
  const bool in_arena = rank < 64 && (c.in_arena >> rank & 1) != 0;
  for (int r = 0; r < (divides ? world_size : 1); ++r) {
    inputs_.emplace_back(c.dtype, count_of(rank, r), in_arena);
  }
  for (int r = 0; r < (collects ? world_size : 1); ++r) {
    outputs_.emplace_back(c.dtype, count_of(r, rank), in_arena);
  }
  out_ = !c.in_place ? &outputs_[0] : &inputs_[divides ? rank : 0];
  if (collects) out_ = nullptr;
  own_ = &inputs_[0];
  gathers_in_place_ = c.in_place && collects && (which != Collective::kGather || at_root());
  if (gathers_in_place_) own_ = &outputs_[rank];
}

Part::Part(Part&&) noexcept = default;
Part::~Part() = default;

void Part::fill() {
  for (std::size_t r = 0; r < inputs_.size(); ++r) {
    inputs_[r].fill(case_.inputs[rank_], phase_of(static_cast<int>(r)));
  }
  if (gathers_in_place_) own_->fill(case_.inputs[rank_], 0);
}

void Part::call(Collectives& collectives, std::chrono::milliseconds timeout) {
  const Reduce reduce{case_.dtype, case_.op, factor_of(case_.dtype, rank_)};
  const DType dtype = case_.dtype;
  const int root = case_.root;
  const std::size_t count = inputs_[0].count();
  std::vector<Input> blocks;
  std::vector<const void*> sources;
  for (const Buffer& b : inputs_) {
    blocks.push_back({b.data(), b.count()});
    if (at_root()) sources.push_back(b.data());
  }
  std::vector<Output> outputs;
  std::vector<void*> pointers;
  for (const Buffer& b : outputs_) {
    outputs.push_back({b.data(), b.count()});
    if (at_root()) pointers.push_back(b.data());
  }
  switch (case_.collective) {
    case Collective::kAllReduce:
      return collectives.all_reduce(own_->data(), out_->data(), count, reduce, timeout);
    case Collective::kReduce:
      return collectives.reduce(own_->data(), out_->data(), count, reduce, root, timeout);
    case Collective::kBroadcast:
      return collectives.broadcast((at_root() ? own_ : out_)->data(), count, dtype, root, timeout);
    case Collective::kReduceScatter:
      return collectives.reduce_scatter(blocks, out_->data(), reduce, timeout);
    case Collective::kAllGather:
      return collectives.all_gather(own_->data(), outputs, dtype, timeout);
    case Collective::kGather:
      return collectives.gather(own_->data(), pointers, count, dtype, root, timeout);
    case Collective::kScatter:
      return collectives.scatter(sources, out_->data(), out_->count(), dtype, root, timeout);
    case Collective::kAllToAll:
      return collectives.all_to_all(blocks, outputs, dtype, timeout);
    case Collective::kBarrier:
      break;  // not every communicator has one: see perform()
  }
}

bool Part::right() const {
  bool right = true;
  auto check = [&](const Buffer& buffer, const Pattern& pattern, int block = 0) {
    right = right && buffer.holds(pattern, phase_of(block));
  };
  switch (case_.collective) {
    case Collective::kAllReduce:
      check(*out_, case_.reduced);
      break;
    case Collective::kReduce:
      if (at_root()) check(*out_, case_.reduced);
      if (!at_root()) check(*own_, case_.inputs[rank_]);
      break;
    case Collective::kBroadcast:
      check(at_root() ? *own_ : *out_, case_.inputs[case_.root]);
      break;
    case Collective::kReduceScatter:
      check(*out_, case_.reduced, rank_);
      break;
    case Collective::kScatter:
      check(*out_, case_.inputs[case_.root], rank_);
      break;
    case Collective::kAllGather:
    case Collective::kGather:
      if (case_.collective == Collective::kGather && !at_root()) break;
      for (int r = 0; r < world_size_; ++r) check(outputs_[r], case_.inputs[r]);
      break;
    case Collective::kAllToAll:
      for (int r = 0; r < world_size_; ++r) check(outputs_[r], case_.inputs[r], rank_);
      break;
    case Collective::kBarrier:
      break;
  }
  for (std::size_t r = 0; r < inputs_.size() && !case_.in_place; ++r) {
    check(inputs_[r], case_.inputs[rank_], static_cast<int>(r));
  }
  return right;
}

void Part::poison() {
  for (Buffer& buffer : inputs_) buffer.poison();
  for (Buffer& buffer : outputs_) buffer.poison();
}

std::size_t Part::count_of(int from, int to) const {
  const Case& c = case_;
  if (c.collective == Collective::kAllToAll) return c.counts[from * world_size_ + to];
  return per_rank(c.collective) ? c.counts[c.collective == Collective::kAllGather ? from : to]
                                : c.counts[0];
}

void perform(const Case& c, Communicator& comm, Communicator::Timeout timeout) {
  if (c.collective == Collective::kBarrier) return comm.barrier(timeout);
  Part part(c, comm.rank(), comm.world_size());
  part.fill();
  part.call(comm, timeout);
  CHECK_WITH(part.right(),
             "rank " + std::to_string(comm.rank()) + ": " + c.name(comm.world_size()));
}

Case random_case(Collective collective, int world_size, std::size_t nbytes,
                 std::mt19937_64& random) {
  Case c;
  c.collective = collective;
  c.dtype = static_cast<DType>(random() % kNumDTypes);
  do {
    c.op = reduces(collective) ? static_cast<ReduceOp>(random() % kNumReduceOps) : ReduceOp::kSum;
  } while (!supports(c.dtype, c.op));
  if (rooted(collective)) c.root = static_cast<int>(random() % world_size);
  c.in_place = random() % 2 != 0;
  const std::size_t count = nbytes / element_size(c.dtype);
  if (collective == Collective::kBarrier) return c;
  const bool pairs = collective == Collective::kAllToAll;
  if (!pairs && !per_rank(collective)) {
    c.counts = {collective == Collective::kGather || collective == Collective::kScatter
                    ? count / world_size
                    : count};
  } else {
    const int uneven = static_cast<int>(random() % 3);
    c.counts.resize(pairs ? world_size * world_size : world_size, count / world_size);
    for (std::size_t& each : c.counts) {
      if (uneven == 1) each = random() % 3 == 0 ? 0 : random() % (each + 2);
      if (uneven == 2) each = 0;
    }
    if (uneven == 2) c.counts[random() % c.counts.size()] = count;
  }
  if (pairs) c.in_place = false;
  make_data(c, world_size, random);
  return c;
}

}  // namespace cases
