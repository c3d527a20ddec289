#include "gpu/fused/job.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "core/policy.h"

namespace ringcomm::fused {
namespace {

std::size_t slot_nbytes(const Program& program, const Layout& layout) {
  return layout.outbox_nbytes / std::max(program.num_slots, 1) / kLine * kLine;
}

// In an all-to-all no rank knows all counts.
bool counts_are_known(const Call& call) { return call.collective != Collective::kAllToAll; }

std::size_t slice_nbytes(const Call& call, std::size_t slot, std::size_t most, int num_lanes) {
  const std::size_t fits = slot - kPackBytes;  // leaves room for the skew
  return counts_are_known(call) ? kernel_slice_nbytes(fits, most, num_lanes, kPackBytes) : fits;
}

std::size_t most_elements(std::span<const Chunk> chunks) {
  std::size_t most = 0;
  for (const Chunk& chunk : chunks) most = std::max(most, chunk.count);
  return most;
}

Job common_job(const Reduction& reduction, const Layout& layout, int rank) {
  Job job{};
  job.layout = layout;
  job.rank = rank;
  job.element_nbytes = element_size(reduction.dtype);
  const KernelKey key = kernel_key(reduction.dtype, effective_op(reduction));
  job.unit_nbytes = element_size(key.dtype);
  job.premultiplies = reduction.op == ReduceOp::kPremulSum;
  job.reduction_arguments = reduction_arguments_of(reduction);
  return job;
}

// Elements of a rank's part of an all-reduce in two hops. Parts are whole packs, so the last ranks
// may have fewer elements, or none.
std::size_t part_count(const Call& call, const Layout& layout) {
  const std::size_t ranks = layout.world_size;
  return round_up(divide_up(call.count, ranks), kPackBytes / element_size(call.dtype));
}

void add_piece(const Chunk& chunk, Job& job) {
  job.pieces[job.num_pieces++] = {chunk.input, chunk.output, chunk.count, 0};
}

void add_parts(const Chunk& whole, std::size_t count, Job& job) {
  for (int r = 0; r < job.layout.world_size; ++r) {
    const std::size_t first = std::min(whole.count, r * count);
    const std::size_t at = first * job.element_nbytes;
    add_piece({whole.input + at, whole.output + at, std::min(count, whole.count - first)}, job);
  }
}

}  // namespace

ScriptText::ScriptText(const Program& program, int rank) {
  const auto add = [&](int peer, int action, int slot) {
    peers.push_back({peer, action, program.num_actions[peer], slot});
  };
  for (const Action& action : program.actions) {
    const auto first_peer = static_cast<std::int32_t>(peers.size());
    const auto first_concerned = static_cast<std::int32_t>(concerned.size());
    for (const Source& source : action.from) add(source.peer, source.action, source.slot);
    for (const Reader& reader : action.to) add(reader.peer, reader.action, -1);
    std::set<int> ranks;
    for (const Source& source : action.from) ranks.insert(source.peer);
    for (const Reader& reader : action.to) ranks.insert(reader.peer);
    concerned.insert(concerned.end(), ranks.begin(), ranks.end());
    // Inputs are added in rank order, so that a sum does not depend on which rank computes it.
    const auto before = std::ranges::count_if(
        action.from, [&](const Source& source) { return source.peer < rank; });
    const bool uses_own = action.own.kind != Location::kNowhere;
    steps.push_back({.chunk = action.chunk,
                     .first_peer = first_peer,
                     .num_sources = static_cast<std::int32_t>(action.from.size()),
                     .num_readers = static_cast<std::int32_t>(action.to.size()),
                     .first_concerned = first_concerned,
                     .num_concerned = static_cast<std::int32_t>(ranks.size()),
                     .own_input = uses_own ? static_cast<std::int32_t>(before) : -1,
                     .slot = action.slot,
                     .replaces = action.replaces,
                     .own = action.own,
                     .store = action.store,
                     .finish = action.finish});
  }
}

Script ScriptText::write(std::byte* memory, const std::byte* address) const {
  const std::size_t peers_at = steps.size() * sizeof(Step);
  const std::size_t concerned_at = peers_at + peers.size() * sizeof(Peer);
  std::memcpy(memory, steps.data(), peers_at);
  std::memcpy(memory + peers_at, peers.data(), concerned_at - peers_at);
  std::memcpy(memory + concerned_at, concerned.data(), nbytes() - concerned_at);
  return {.steps = reinterpret_cast<const Step*>(address),
          .peers = reinterpret_cast<const Peer*>(address + peers_at),
          .concerned = reinterpret_cast<const std::int32_t*>(address + concerned_at),
          .num_steps = static_cast<std::int32_t>(steps.size()),
          .nbytes = static_cast<std::uint32_t>(nbytes())};
}

std::string why_not(const Program& program, const Layout& layout) {
  if (program.num_chunks > kMaxChunks) {
    return "its plan has " + std::to_string(program.num_chunks) + " chunks, and a kernel is told " +
           "of no more than " + std::to_string(kMaxChunks);
  }
  if (slot_nbytes(program, layout) < kLine) {
    return "its plan needs " + std::to_string(program.num_slots) + " slots, and an outbox has " +
           std::to_string(layout.outbox_nbytes) + " bytes";
  }
  return "";
}

bool is_eager(const Call& call, std::span<const Chunk> blocks, const Layout& layout) {
  const std::size_t nbytes = most_elements(blocks) * element_size(call.dtype);
  return path_of(call, ExecutorKind::kFused, nbytes, layout.eager_nbytes) == Path::kWithCall;
}

bool takes_two_hops(const Call& call, std::span<const Chunk> blocks, const Layout& layout) {
  const std::size_t part_nbytes = part_count(call, layout) * element_size(call.dtype);
  return !is_eager(call, blocks, layout) &&
         ringcomm::takes_two_hops(call, part_nbytes, layout.hop_nbytes);
}

Job make_eager_job(const Call& call, std::span<const Chunk> blocks, const Reduction& reduction,
                   const Layout& layout, int rank) {
  Job job = common_job(reduction, layout, rank);
  job.reduction_arguments.scaled_input = job.premultiplies ? 0 : -1;
  job.gathers = call.collective == Collective::kAllGather;
  job.two_hops = takes_two_hops(call, blocks, layout);
  if (job.two_hops) {
    add_parts(blocks.front(), part_count(call, layout), job);
  } else {
    for (const Chunk& block : blocks) add_piece(block, job);
  }
  std::size_t most = 0;
  for (int i = 0; i < job.num_pieces; ++i) most = std::max(most, job.pieces[i].count);
  const std::size_t packs = num_packs(most * job.element_nbytes);
  const std::size_t lanes = divide_up(packs, layout.eager_packs);
  job.num_lanes = static_cast<int>(std::min<std::size_t>(lanes, layout.eager_lanes));
  return job;
}

Job make_job(const Call& call, const Program& program, std::span<const Chunk> chunks,
             const Reduction& reduction, const Layout& layout, int rank) {
  Job job = common_job(reduction, layout, rank);
  job.num_pieces = static_cast<int>(chunks.size());
  std::size_t before = 0;  // bytes
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    const std::size_t nbytes = chunks[c].count * job.element_nbytes;
    const std::size_t skew = counts_are_known(call) ? before % kPackBytes : 0;
    job.pieces[c] = {chunks[c].input, chunks[c].output, chunks[c].count,
                     static_cast<std::uint32_t>(skew)};
    before += nbytes;
  }
  const std::size_t most = most_elements(chunks) * job.element_nbytes;
  job.slot_nbytes = slot_nbytes(program, layout);
  const std::size_t slice = slice_nbytes(call, job.slot_nbytes, most, layout.num_lanes);
  job.slice_count = slice / job.element_nbytes;
  job.looks_ahead = looks_ahead(slice);
  job.num_rounds = divide_up(most, slice);
  const std::size_t lanes = layout.num_lanes;
  job.num_lanes = static_cast<int>(
      counts_are_known(call) ? std::clamp<std::size_t>(job.num_rounds, 1, lanes) : lanes);
  job.scratch_nbytes = program.num_scratch * job.slot_nbytes;
  return job;
}

}  // namespace ringcomm::fused
