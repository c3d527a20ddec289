// How a call goes: with its announcement or by a plan, by which algorithm, with or without copies,
// and in slices of how many bytes.
//
// All ranks of a group must choose alike. So a choice depends only on what all of them know: on the
// call, which they compare, and on what they agreed on when the group was made. Nothing here asks a
// group, shared memory or a device, and `python -m ringcomm explain --choose` prints the choices of
// any group.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/call.h"
#include "core/selection.h"
#include "core/text.h"
#include "plan/algorithms.h"
#include "plan/collective.h"
#include "plan/network.h"
#include "reduce/types.h"

namespace ringcomm {

// What carries out the calls of a group.
enum class ExecutorKind : std::uint8_t {
  kShm,       // shared memory, and links between hosts
  kMessages,  // a device, by calls to NCCL
  kFused,     // a device, by one kernel for each call
};

// A family of algorithms, of which each collective has one or another.
enum class AlgorithmFamily {
  kRing,
  kDirect,   // every rank sends directly to the receiver
  kOneShot,  // an all-reduce: every rank sends all its data to every other rank
  kTree,
  kDoubling,  // an all-reduce: what ranks have of the sum doubles with each step
};
inline constexpr int kNumFamilies = 5;

enum class Path : std::uint8_t {
  kWithCall,  // the data is sent with the announcement of the call; by kernels: with its flags
  kByPlan,    // the algorithm's plan is carried out
};

struct Decision {
  Path path;
  // Nothing is copied if the tensors of all ranks lie in memory that they share, whatever the path.
  bool zero_copy;
  // Whose plan it is. Calls whose data is sent with them have one, too: it is compared.
  AlgorithmId algorithm;
};

// What the choices depend on, besides the call.
struct GroupFacts {
  int world_size = 1;
  Selection::Choices choices = {};    // a user's
  bool reproducible = false;          // sums depend on the ranks' values alone
  std::vector<TunedRule> tuned = {};  // on one host, for groups of this size
  std::vector<int> host_of = {};      // by rank; empty: all ranks share one host
  // What plans of two levels take for the ranks' hosts; empty: as above. A user may name others.
  std::vector<int> host_of_plans = {};
  Link link = {};                    // between hosts
  std::size_t with_call_nbytes = 0;  // what with_call_nbytes() returns, or a kernel's limit
};

// Whether the data of such calls is sent with them if it is small. A user's plan is carried out
// however small the input is. By kernels every rank must receive from every other one
// (gpu/fused/eager.h).
inline bool may_travel_with_call(const Call& call, ExecutorKind executor) {
  const bool is_mutual = call.collective == Collective::kAllReduce ||
                         call.collective == Collective::kReduceScatter ||
                         call.collective == Collective::kAllGather;
  return call.algorithm != kUsersPlans && (executor == ExecutorKind::kShm || is_mutual);
}
// The payload is the largest that any rank has for all others; by kernels, for one other.
inline Path path_of(const Call& call, ExecutorKind executor, std::size_t payload_nbytes,
                    std::size_t most_nbytes) {
  const bool travels = may_travel_with_call(call, executor) && payload_nbytes <= most_nbytes;
  return travels ? Path::kWithCall : Path::kByPlan;
}

// The choices of a group. What they have in common is calculated once, when the group is made.
class Policy {
 public:
  // Throws Error (kInvalidArgument) if a collective has no algorithm of the name that is selected.
  explicit Policy(const GroupFacts& facts);

  AlgorithmId algorithm(const Call& call, ExecutorKind executor) const;

  // The path of a call that has an algorithm and a payload of so many bytes.
  Path path(const Call& call, ExecutorKind executor, std::size_t payload_nbytes) const {
    return path_of(call, executor, payload_nbytes, with_call_nbytes_);
  }
  std::size_t with_call_nbytes() const { return with_call_nbytes_; }

  bool zero_copy(const Call& call, Path path) const {
    return !(path == Path::kWithCall && is_sooner_copied(call)) && may_be_zero_copy(call);
  }

  // All of these. `call` needs no algorithm yet.
  Decision choose(Call call, ExecutorKind executor, std::size_t payload_nbytes) const;

  int world_size() const { return world_size_; }
  const Selection::Choices& choices() const { return choices_; }

 private:
  // Bytes for each rank of what is small: less is sent with the announcement sooner than reached.
  static constexpr std::size_t kLeastInPlace = 8 << 10;

  bool is_sooner_copied(const Call& call) const {
    return call.collective == Collective::kAllToAll ||
           call.count * element_size(call.dtype) < kLeastInPlace * world_size_;
  }
  bool may_be_zero_copy(const Call& call) const;
  AlgorithmId reproducible_algorithm(const Call& call, ExecutorKind executor) const;

  int world_size_;
  bool is_on_one_host_ = true;
  bool is_reproducible_;
  Selection::Choices choices_;
  std::array<std::optional<AlgorithmId>, kNumCollectives> selected_{};
  std::array<std::array<AlgorithmId, kNumFamilies>, kNumCollectives> automatic_{};
  // Across hosts, of reproducible sums that are rounded with every addition: what sends less than
  // all ranks to each other do.
  std::array<std::optional<AlgorithmId>, kNumCollectives> in_pairs_{};
  Tuning tuning_;
  // Across hosts, of an all-reduce of at most so many bytes.
  AlgorithmId doubling_ = 0;
  double doubling_most_ = 0;
  std::size_t with_call_nbytes_;
};

// Which family a call uses, if a user has selected nothing and no rule was measured.
AlgorithmFamily family_by_shm(Collective collective, std::size_t count, DType dtype, int world_size,
                              bool is_on_one_host);
AlgorithmFamily family_by_messages(Collective collective, std::size_t count, DType dtype,
                                   int world_size);
AlgorithmFamily family_by_kernel(Collective collective, std::size_t count, DType dtype,
                                 int world_size);

// ---- What is sent with the call ----------------------------------------------------------------

// What the ranks of a host announce goes to another in one message, which an engine sends before it
// is received (hosts/ucx_library.cpp) if it is no longer than this.
inline constexpr std::size_t kMostBetweenHosts = 256 << 10;

// The most bytes of a rank's input that travel with its announcement: on one host, and where hosts
// have a network between them that is known (latency and bandwidth above 0).
std::size_t with_call_nbytes(int world_size);
std::size_t with_call_nbytes(const std::vector<int>& host_of, const Link& link,
                             std::string_view engine);

// Whether a payload has a place of its own among many, used in rotation, and does not lie behind
// its announcement. Less is written as fast to lines that others still have, and the fewest lines
// are the best.
inline bool goes_in_rotation(std::size_t payload_nbytes, bool shares_cores) {
  constexpr std::size_t kLeast = 2 << 10, kLeastOnSharedCores = 8 << 10;
  return payload_nbytes >= (shares_cores ? kLeastOnSharedCores : kLeast);
}

// ---- Slices ------------------------------------------------------------------------------------

// Bytes at whose multiples slices begin; a multiple of every element.
inline constexpr std::size_t kSliceAlignment = 64;

// Bytes of the slices into which shared memory's executor cuts chunks, the largest of so many
// bytes. sent_unasked: what another host is sent at once; 0: all ranks share one host.
std::size_t slice_nbytes(Collective collective, std::size_t slot_nbytes, std::size_t chunk_nbytes,
                         std::size_t sent_unasked);

// Likewise for a kernel, where `fits` bytes fit into a slot: whole packs.
std::size_t kernel_slice_nbytes(std::size_t fits, std::size_t chunk_nbytes, std::size_t num_lanes,
                                std::size_t pack_nbytes);
// Whether a kernel looks for what a step needs while the step before is under way: movers move so
// many bytes in the time that one look at a flag takes.
inline bool looks_ahead(std::size_t slice_nbytes) { return slice_nbytes >= 64 << 10; }

// Bytes. By messages, a slice that takes longer on the wire than its calls on the host: with the
// seconds and the bandwidth of gpu/streams/cost.h, which checks it.
inline constexpr std::size_t kLeastMessageSlice = 5'000'000;

// ---- An all-to-all out of other processes ------------------------------------------------------

// Whether a rank that takes so many bytes, from so many others, may have the kernel copy them.
inline bool is_worth_taking(std::size_t nbytes, std::size_t num_peers) {
  constexpr std::size_t kLeast = 512 << 10;  // from each, on average
  return nbytes >= kLeast * num_peers;
}
// Whether a rank that has so many bytes for so many others asks if the kernel can read them. A rank
// that has less would have to ask first, so nothing of it is read.
inline bool is_worth_reading(std::size_t nbytes, std::size_t num_peers) {
  constexpr std::size_t kLeast = 128 << 10;  // to each, on average
  return nbytes >= kLeast * num_peers;
}

// ---- Kernels -----------------------------------------------------------------------------------

// Why the ranks of a device cannot be connected for kernels; empty: they can, if they reach each
// other's memory.
std::string why_no_kernels(int world_size, bool spans_hosts, int most_ranks);

// Whether an all-reduce that is too large to be eager takes two hops: each rank's part has so many
// bytes.
inline bool takes_two_hops(const Call& call, std::size_t part_nbytes, std::size_t hop_nbytes) {
  return call.collective == Collective::kAllReduce && call.algorithm != kUsersPlans &&
         part_nbytes <= hop_nbytes;
}

// ---- The outcome, as people read it ------------------------------------------------------------

// How calls of at most so many bytes, which belong to no smaller class, are carried out. People
// read it: RINGCOMM_DEBUG, `python -m ringcomm status` and `explain --choose` print it. The bytes
// are those of the larger of a rank's two buffers.
struct SizeClass {
  static constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

  std::uint64_t most_nbytes;
  // From so many bytes on, calls of the collective copy nothing if the tensors of all ranks lie in
  // memory that they share, whatever the class says. kNoLimit: they always copy.
  std::uint64_t zero_copy_from;
  Collective collective;
  DType dtype;
  Path path;
  FixedText<37> algorithm;  // its name; empty with the call
};

// A group publishes at most so many size classes.
inline constexpr int kMostSizeClasses = 96;

// Those of an all-reduce, reduce-scatter, all-gather, broadcast or reduce, ascending.
std::vector<SizeClass> size_classes(const Policy& policy, ExecutorKind executor,
                                    Collective collective, DType dtype);

}  // namespace ringcomm
