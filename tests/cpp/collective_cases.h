// Collective calls as data: made from a seed, carried out by every rank, and checked against
// results computed beforehand from the inputs of all ranks.
//
// A buffer repeats its rank's pattern of kPeriod elements, from a phase of its own. The period is a
// prime, so a slice that lands in the wrong place, or comes from the wrong rank, shows.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "communicator.h"
#include "reference.h"

namespace cases {

using namespace ringcomm;

inline constexpr std::size_t kPeriod = 251;
using Pattern = std::vector<std::uint64_t>;

struct Case {
  Collective collective = Collective::kAllReduce;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root = -1;
  bool in_place = false;
  std::vector<std::size_t> counts;  // one; per rank; or, for all-to-all, per pair [from][to]
  std::vector<Pattern> inputs;      // by rank
  Pattern reduced;

  std::string name(int world_size) const {
    std::string text = std::string(to_string(collective)) + ", " + std::to_string(world_size) +
                       " ranks, " + ringcomm::name(dtype) + ", " + ringcomm::name(op) + ", root " +
                       std::to_string(root) + (in_place ? ", in place" : "") + ", counts";
    for (std::size_t i = 0; i < counts.size() && i < 16; ++i) {
      text += " " + std::to_string(counts[i]);
    }
    return text;
  }
};

inline bool reduces(Collective c) {
  return c == Collective::kAllReduce || c == Collective::kReduceScatter || c == Collective::kReduce;
}

inline bool rooted(Collective c) {
  return c == Collective::kReduce || c == Collective::kBroadcast || c == Collective::kGather ||
         c == Collective::kScatter;
}

inline bool per_rank(Collective c) {
  return c == Collective::kReduceScatter || c == Collective::kAllGather;
}

// The factor of premul_sum, different on every rank; times a small integer it is exact.
inline double factor_of(int rank) { return std::vector<double>{1, 0.5, 2}[rank % 3]; }

// What is moved may be any bits. What is reduced must not depend on the order: integers do not, nor
// do min and max, and sums and products of floats are exact because few ranks have more than the
// neutral element.
inline std::uint64_t element(const Case& c, int rank, int world_size, std::size_t index,
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

inline void make_data(Case& c, int world_size, std::mt19937_64& random) {
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
        bits = reference::from_double(c.dtype, reference::to_double(c.dtype, bits) * factor_of(r));
      }
      values.push_back(bits);
    }
    const ReduceOp op = c.op == ReduceOp::kPremulSum ? ReduceOp::kSum : c.op;
    c.reduced[i] = reference::reduce({.dtype = c.dtype, .op = op, .divisor = world_size}, values);
  }
}

// Exactly as long as it must be, so that AddressSanitizer sees every byte too far.
class Buffer {
 public:
  Buffer(DType dtype, std::size_t count)
      : width_(element_size(dtype)), count_(count), data_(new std::byte[count * width_]) {
    std::memset(data_.get(), 0xa5, count * width_);
  }
  Buffer(DType dtype, std::size_t count, const Pattern& pattern, std::size_t phase)
      : Buffer(dtype, count) {
    const std::vector<std::byte> period = bytes_of(pattern, phase);
    for (std::size_t at = 0; at < count * width_; at += period.size()) {
      std::memcpy(data_.get() + at, period.data(), std::min(period.size(), count * width_ - at));
    }
  }
  void* data() const { return data_.get(); }
  std::size_t count() const { return count_; }

  bool holds(const Pattern& pattern, std::size_t phase) const {
    const std::vector<std::byte> period = bytes_of(pattern, phase);
    bool same = true;
    for (std::size_t at = 0; at < count_ * width_; at += period.size()) {
      const std::size_t nbytes = std::min(period.size(), count_ * width_ - at);
      same = same && std::memcmp(data_.get() + at, period.data(), nbytes) == 0;
    }
    return same;
  }

 private:
  std::vector<std::byte> bytes_of(const Pattern& pattern, std::size_t phase) const {
    std::vector<std::byte> period(kPeriod * width_);
    for (std::size_t i = 0; i < kPeriod; ++i) {
      std::memcpy(period.data() + i * width_, &pattern[(i + phase) % kPeriod], width_);
    }
    return period;
  }

  std::size_t width_;
  std::size_t count_;
  std::unique_ptr<std::byte[]> data_;
};

inline std::size_t phase_of(int block) { return 17 * block; }

// Carries the case out as this rank, checks the outputs and that inputs are as they were.
inline void perform(const Case& c, Communicator& comm, Communicator::Timeout timeout) {
  if (c.collective == Collective::kBarrier) return comm.barrier(timeout);
  const int n = comm.world_size(), me = comm.rank();
  const Reduce reduce{c.dtype, c.op, factor_of(me)};
  const bool at_root = me == c.root;
  auto check = [&](const Buffer& buffer, const Pattern& pattern, int block = 0) {
    CHECK_WITH(buffer.holds(pattern, phase_of(block)),
               "rank " + std::to_string(me) + ": " + c.name(n));
  };
  auto count_of = [&](int from, int to) {
    if (c.collective == Collective::kAllToAll) return c.counts[from * n + to];
    return per_rank(c.collective) ? c.counts[c.collective == Collective::kAllGather ? from : to]
                                  : c.counts[0];
  };
  // What this rank has for each rank, or for all together; and what it gets from each, or in all.
  const bool divides = c.collective == Collective::kReduceScatter ||
                       c.collective == Collective::kScatter ||
                       c.collective == Collective::kAllToAll;
  const bool collects = c.collective == Collective::kAllGather ||
                        c.collective == Collective::kGather ||
                        c.collective == Collective::kAllToAll;
  std::vector<Buffer> inputs, outputs;
  for (int r = 0; r < (divides ? n : 1); ++r) {
    inputs.emplace_back(c.dtype, count_of(me, r), c.inputs[me], phase_of(r));
  }
  for (int r = 0; r < (collects ? n : 1); ++r) outputs.emplace_back(c.dtype, count_of(r, me));
  Buffer& in = inputs[0];
  Buffer& out = !c.in_place ? outputs[0] : divides ? inputs[me] : in;

  switch (c.collective) {
    case Collective::kAllReduce:
      comm.all_reduce(in.data(), out.data(), in.count(), reduce, timeout);
      check(out, c.reduced);
      break;
    case Collective::kReduce:
      comm.reduce(in.data(), out.data(), in.count(), reduce, c.root, timeout);
      if (at_root) check(out, c.reduced);
      if (!at_root) check(in, c.inputs[me]);
      break;
    case Collective::kBroadcast:
      comm.broadcast(at_root ? in.data() : out.data(), in.count(), c.dtype, c.root, timeout);
      check(at_root ? in : out, c.inputs[c.root]);
      break;
    case Collective::kReduceScatter: {
      std::vector<Input> blocks;
      for (const Buffer& b : inputs) blocks.push_back({b.data(), b.count()});
      comm.reduce_scatter(blocks, out.data(), reduce, timeout);
      check(out, c.reduced, me);
      break;
    }
    case Collective::kAllGather:
    case Collective::kGather: {
      std::vector<Output> blocks;
      std::vector<void*> pointers;
      for (int r = 0; r < n; ++r) {
        if (r == me && c.in_place) outputs[r] = Buffer(c.dtype, in.count(), c.inputs[me], 0);
        blocks.push_back({outputs[r].data(), outputs[r].count()});
        pointers.push_back(outputs[r].data());
      }
      const void* input = c.in_place ? outputs[me].data() : in.data();
      const bool all = c.collective == Collective::kAllGather;
      if (all) comm.all_gather(input, blocks, c.dtype, timeout);
      if (!all && !at_root) pointers.clear();
      if (!all && !at_root) input = in.data();
      if (!all) comm.gather(input, pointers, in.count(), c.dtype, c.root, timeout);
      for (int r = 0; r < n && (all || at_root); ++r) check(outputs[r], c.inputs[r]);
      break;
    }
    case Collective::kScatter: {
      std::vector<const void*> blocks;
      for (int r = 0; r < n && at_root; ++r) blocks.push_back(inputs[r].data());
      comm.scatter(blocks, out.data(), out.count(), c.dtype, c.root, timeout);
      check(out, c.inputs[c.root], me);
      break;
    }
    case Collective::kAllToAll: {
      std::vector<Input> sent;
      std::vector<Output> received;
      for (const Buffer& b : inputs) sent.push_back({b.data(), b.count()});
      for (const Buffer& b : outputs) received.push_back({b.data(), b.count()});
      comm.all_to_all(sent, received, c.dtype, timeout);
      for (int r = 0; r < n; ++r) check(outputs[r], c.inputs[r], me);
      break;
    }
    case Collective::kBarrier:
      break;
  }
  for (std::size_t r = 0; r < inputs.size() && !c.in_place; ++r) {
    check(inputs[r], c.inputs[me], static_cast<int>(r));
  }
}

// A case with random type, operation, root and place. `count` is that of the largest buffer of a
// rank; where counts may differ by rank they sometimes do, and sometimes are zero.
inline Case random_case(Collective collective, int world_size, std::size_t nbytes,
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

inline const std::vector<Collective> kCollectives = {
    Collective::kAllReduce, Collective::kReduceScatter, Collective::kReduce,
    Collective::kAllGather, Collective::kGather,        Collective::kScatter,
    Collective::kBroadcast, Collective::kAllToAll,      Collective::kBarrier,
};

}  // namespace cases
