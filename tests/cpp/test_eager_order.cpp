// The order in which ranks write to each other when they send eagerly: at any moment each writes to
// another one.
#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "check.h"
#include "gpu/fused/eager.h"

namespace {

using namespace ringcomm;
using fused::Job;

// A block of one thread, which notes whose memory it writes to, and does not wait.
class Writer {
 public:
  explicit Writer(const Job& job) : job_(job) { arguments_.set_reduction(job.reduction_arguments); }

  static int thread() { return 0; }
  static int num_threads() { return 1; }
  static bool any(bool value) { return value; }
  static bool aborted(std::uint32_t, int) { return true; }
  static void waited() {}
  static fused::LLPacket look(const fused::LLPacket*) { return {0, 0}; }
  const DeviceArguments& arguments() const { return arguments_; }

  void put(const fused::LLPacket* to, const fused::LLPacket&) {
    const auto* const at = reinterpret_cast<const std::byte*>(to);
    for (int r = 0; r < job_.layout.world_size; ++r) {
      if (at >= job_.memory[r] && at < job_.memory[r] + job_.layout.nbytes()) written.push_back(r);
    }
  }

  std::vector<int> written;  // the ranks, in order

 private:
  const Job& job_;
  DeviceArguments arguments_;
};

enum class Kind { kAllReduce, kReduceScatter, kAllGather };

std::vector<int> written_by(int rank, int world_size, Kind kind) {
  Job job{};
  job.layout = {.world_size = world_size,
                .num_lanes = 1,
                .outbox_nbytes = fused::kLine,
                .eager_lanes = 1,
                .eager_nbytes = fused::kEagerUnit};
  std::vector<std::vector<std::byte>> memory(world_size);
  for (int r = 0; r < world_size; ++r) {
    memory[r].resize(job.layout.nbytes() + sizeof(fused::LLPacket));
    const auto address = reinterpret_cast<std::uintptr_t>(memory[r].data());
    job.memory[r] = memory[r].data() + address % sizeof(fused::LLPacket);
  }
  std::array<float, 4> data{};
  job.rank = rank;
  job.num_lanes = 1;
  job.element_nbytes = sizeof(float);
  job.reduction_arguments.scaled_input = -1;
  job.num_pieces = kind == Kind::kAllReduce ? 1 : world_size;
  for (int i = 0; i < job.num_pieces; ++i) {
    job.pieces[i] = {reinterpret_cast<const std::byte*>(data.data()),
                     reinterpret_cast<std::byte*>(data.data()), data.size(), 0};
  }
  Writer writer(job);
  if (kind == Kind::kAllGather) {
    fused::EagerGather<Writer>(writer, job, 0).run();
  } else {
    fused::EagerSum<DType::kFloat32, ReduceOp::kSum, Writer>(writer, job, 0).run();
  }
  return writer.written;
}

}  // namespace

TEST(each_rank_writes_to_another_one) {
  for (const Kind kind : {Kind::kAllReduce, Kind::kReduceScatter, Kind::kAllGather}) {
    for (int n = 2; n <= 9; ++n) {
      std::vector<std::vector<int>> written;
      for (int rank = 0; rank < n; ++rank) written.push_back(written_by(rank, n, kind));
      for (int place = 0; place < 2 * (n - 1); ++place) {  // two halves to each
        std::set<int> ranks;
        for (const std::vector<int>& each : written) ranks.insert(each.at(place));
        CHECK_WITH(std::ssize(ranks) == n,
                   std::to_string(n) + " ranks, place " + std::to_string(place));
      }
    }
  }
}
