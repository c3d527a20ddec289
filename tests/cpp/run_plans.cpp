// Carries out the plans that it reads, over shared memory and on simulated streams, and compares
// every bit with what the plans say. Answers each problem with a line: "ok", or what is wrong.
//
// A problem: collective, world size, root, dtype, op, count of a block, in place (0 or 1), seed,
// chunks; then each rank's number of steps and, for each, its sends (number, then peer, first
// chunk, chunks) and its receives (number, then peer, first chunk, chunks, reduce).
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/collectives.h"
#include "memory_store.h"
#include "plan/verify.h"
#include "plan_interpreter.h"
#include "stream_ranks.h"

namespace {

using namespace ringcomm;
using interpreter::Interpreter;
using interpreter::kPeriod;
using interpreter::Problem;

struct Task {
  Problem problem;
  std::size_t count;  // elements of a block
  bool in_place;
  std::uint64_t seed;

  Reduce reduce(int rank) const { return problem.reduces[rank]; }
  DType dtype() const { return problem.reduces[0].dtype; }
};

int number() {
  long long value;
  if (!(std::cin >> value)) throw std::runtime_error("a problem ends too early");
  return static_cast<int>(value);
}

std::vector<Transfer> read_transfers(bool receives) {
  std::vector<Transfer> transfers(number());
  for (Transfer& t : transfers) {
    t.peer = number();
    t.first_chunk = number();
    t.num_chunks = number();
    if (receives) t.reduce = number() != 0;
  }
  return transfers;
}

std::uint64_t random_element(const Reduce& reduce, bool reduces, std::mt19937_64& random) {
  const std::uint64_t bits = random() >> (64 - 8 * element_size(reduce.dtype));
  if (reduce.dtype == DType::kBool) return bits % 2;
  if (!reduces || !is_floating_point(reduce.dtype)) return bits;
  return reference::from_double(reduce.dtype, static_cast<double>(bits % 2001) / 1000 - 1);
}

Task read_task() {
  Task task;
  Problem& p = task.problem;
  p.collective = static_cast<Collective>(number());
  p.world_size = number();
  p.root = number();
  const auto dtype = static_cast<DType>(number());
  const int op_number = number();
  const ReduceOp op =
      is_reduction(p.collective) ? static_cast<ReduceOp>(op_number) : ReduceOp::kSum;
  task.count = static_cast<std::size_t>(number());
  task.in_place = number() != 0;
  task.seed = static_cast<std::uint64_t>(number());
  const int num_chunks = number();
  std::mt19937_64 random(task.seed);
  for (int r = 0; r < p.world_size; ++r) {
    Plan plan{num_chunks, std::vector<Step>(number())};
    for (Step& step : plan.steps) step = {read_transfers(false), read_transfers(true)};
    p.plans.push_back(std::move(plan));
    p.reduces.push_back({dtype, op, 0.5 + r % 3});
    std::vector<std::uint64_t>& pattern = p.patterns.emplace_back();
    for (std::size_t i = 0; i < kPeriod; ++i) {
      pattern.push_back(random_element(p.reduces[r], is_reduction(p.collective), random));
    }
  }
  const bool is_whole = p.collective == Collective::kAllReduce ||
                        p.collective == Collective::kReduce ||
                        p.collective == Collective::kBroadcast;
  p.num_blocks = is_whole                                ? 1
                 : p.collective == Collective::kAllToAll ? p.world_size * p.world_size
                                                         : p.world_size;
  return task;
}

// The blocks that a rank begins with, and those that it ends with, in buffers of their own.
class Part {
 public:
  Part(const Task& task, const Interpreter& expected, int rank)
      : task_(task), p_(task.problem), expected_(expected), rank_(rank) {
    const Contract blocks(p_.collective, p_.world_size, p_.num_blocks, p_.root);
    for (int b = 0; b < p_.num_blocks; ++b) {
      if (blocks.holds_before(rank, b)) inputs_.push_back(b);
    }
    outputs_ = blocks.promised_chunks(rank);
    input_.resize(inputs_.size() * block_nbytes());
    output_.resize(outputs_.size() * block_nbytes());
    fill();
  }

  void fill() {
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      for (std::size_t e = 0; e < task_.count; ++e) {
        const std::uint64_t bits = p_.patterns[rank_][interpreter::phase(inputs_[i], e)];
        std::memcpy(input(i) + e * width(), &bits, width());
      }
    }
    std::ranges::fill(output_, std::byte{0xa5});
  }

  void call(Collectives& collectives) {
    constexpr std::chrono::milliseconds kTimeout = std::chrono::seconds(60);
    const Reduce reduce = task_.reduce(rank_);
    std::vector<Input> in;
    std::vector<Output> out;
    std::vector<const void*> sources;
    std::vector<void*> targets;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      in.push_back({input(i), task_.count});
      sources.push_back(input(i));
    }
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      out.push_back({output(i), task_.count});
      targets.push_back(output(i));
    }
    switch (p_.collective) {
      case Collective::kAllReduce:
        return collectives.all_reduce(input(0), result(0), task_.count, reduce, kTimeout);
      case Collective::kReduceScatter:
        return collectives.reduce_scatter(in, output(0), reduce, kTimeout);
      case Collective::kReduce:
        return collectives.reduce(input(0), rank_ == p_.root ? result(0) : nullptr, task_.count,
                                  reduce, p_.root, kTimeout);
      case Collective::kAllGather:
        return collectives.all_gather(input(0), out, task_.dtype(), kTimeout);
      case Collective::kGather:
        return collectives.gather(input(0), targets, task_.count, task_.dtype(), p_.root, kTimeout);
      case Collective::kScatter:
        return collectives.scatter(sources, output(0), task_.count, task_.dtype(), p_.root,
                                   kTimeout);
      case Collective::kBroadcast:
        return collectives.broadcast(rank_ == p_.root ? input(0) : output(0), task_.count,
                                     task_.dtype(), p_.root, kTimeout);
      case Collective::kAllToAll:
        return collectives.all_to_all(in, out, task_.dtype(), kTimeout);
      case Collective::kBarrier:
        break;
    }
  }

  // What is wrong first, or nothing.
  std::string wrong() {
    const bool broadcasts = p_.collective == Collective::kBroadcast && rank_ == p_.root;
    const int per_block = p_.num_chunks() / p_.num_blocks;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      Chunks chunks;
      divide({nullptr, nullptr, task_.count}, width(), per_block, chunks);
      std::size_t first = 0;
      for (int k = 0; k < per_block; ++k) {
        const int chunk = outputs_[i] * per_block + k;
        for (std::size_t e = first; e < first + chunks[k].count; ++e) {
          std::uint64_t bits = 0;
          const std::byte* at = broadcasts ? input(i) : result(i);
          std::memcpy(&bits, at + e * width(), width());
          std::uint64_t wanted = 0;
          std::memcpy(&wanted, &expected_.result(rank_, chunk)[e % kPeriod], width());
          if (reference::same(task_.dtype(), bits, wanted)) continue;
          return "rank " + std::to_string(rank_) + " has " + std::to_string(bits) + " for " +
                 std::to_string(wanted) + " in element " + std::to_string(e) + " of block " +
                 std::to_string(outputs_[i]) + ", chunk " + std::to_string(chunk);
        }
        first += chunks[k].count;
      }
    }
    return "";
  }

 private:
  std::size_t width() const { return element_size(task_.dtype()); }
  std::size_t block_nbytes() const { return task_.count * width(); }
  std::byte* input(std::size_t i) { return input_.data() + i * block_nbytes(); }
  std::byte* output(std::size_t i) { return output_.data() + i * block_nbytes(); }
  bool shares() const {
    return task_.in_place &&
           (p_.collective == Collective::kAllReduce || p_.collective == Collective::kReduce);
  }
  std::byte* result(std::size_t i) { return shares() ? input(i) : output(i); }

  const Task& task_;
  const Problem& p_;
  const Interpreter& expected_;
  const int rank_;
  std::vector<int> inputs_, outputs_;  // blocks
  std::vector<std::byte> input_, output_;
};

Selection selection_of(const Problem& problem) {
  Selection selection;
  selection.choices[problem.collective] = {"read", [&](int, int) { return problem.plans; }};
  return selection;
}

std::string over_shared_memory(const Task& task, const Interpreter& expected) {
  const int n = task.problem.world_size;
  ranks::MemoryStore store;
  std::vector<std::string> wrong(n);
  ranks::on_threads(n, [&](int r) {
    Communicator communicator(store, ranks::group_config(r, n), selection_of(task.problem));
    Part part(task, expected, r);
    for (int i = 0; i < 2 && wrong[r].empty(); ++i) {
      part.fill();
      part.call(communicator);
      wrong[r] = part.wrong();
    }
    communicator.barrier(ranks::kPatience);
  });
  for (const std::string& text : wrong) {
    if (!text.empty()) return "shared memory: " + text;
  }
  return "";
}

std::string on_streams(const Task& task, const Interpreter& expected) {
  const int n = task.problem.world_size;
  std::mt19937_64 random(task.seed);
  simulated::Simulator simulator(random());
  const streams::Layout layout{.num_channels = 1 + static_cast<int>(random() % 3),
                               .slices_in_flight = 2 + static_cast<int>(random() % 3),
                               .slice_nbytes = (2 + random() % 64) * 2048,
                               .min_slice_nbytes = streams::kAlignment};
  std::vector<std::unique_ptr<simulated::Rank>> ranks;
  std::vector<std::unique_ptr<Part>> parts;
  for (int r = 0; r < n; ++r) {
    ranks.push_back(
        std::make_unique<simulated::Rank>(simulator, r, n, selection_of(task.problem), layout));
    parts.push_back(std::make_unique<Part>(task, expected, r));
  }
  for (int r = 0; r < n; ++r) parts[r]->call(*ranks[r]);
  simulator.run();
  for (int r = 0; r < n; ++r) {
    if (const std::string wrong = parts[r]->wrong(); !wrong.empty()) return "streams: " + wrong;
  }
  return "";
}

std::string answer(const Task& task) {
  verify(task.problem.collective, task.problem.plans, task.problem.root);
  Interpreter expected(task.problem);
  expected.run();
  std::string wrong = over_shared_memory(task, expected);
  // On devices ranks do not know the counts of what they pass on in an all-to-all.
  if (wrong.empty() && task.problem.collective != Collective::kAllToAll) {
    wrong = on_streams(task, expected);
  }
  return wrong.empty() ? "ok" : wrong;
}

}  // namespace

int main() {
  while (std::cin >> std::ws && !std::cin.eof()) {
    const Task task = read_task();
    try {
      std::cout << answer(task) << std::endl;
    } catch (const std::exception& error) {
      std::cout << error.what() << std::endl;
    }
  }
}
