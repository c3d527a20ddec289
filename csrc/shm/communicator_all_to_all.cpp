// The all-to-all. Ranks send each other its counts with the call.
#include <cstring>
#include <numeric>

#include "shm/communicator.h"

namespace ringcomm {
namespace {

constexpr std::uint64_t kMostElements = std::uint64_t{1} << 44;  // that any host has memory for

}  // namespace

// Every payload begins with two counts per rank: what this rank sends it, and what it expects from
// it. Whether the data follows is each rank's own choice, made by its own total; what did not
// travel that way goes by plan, in which the rest has no elements.
void Communicator::carry_out_all_to_all(Call& call, const Reduction& reduction,
                                        const Deadline& deadline) {
  const std::size_t n = world_size();
  const std::size_t own = rank();
  const std::size_t element_nbytes = element_size(call.dtype);
  const std::size_t table_nbytes = 2 * n * sizeof(std::uint64_t);
  std::exception_ptr refusal;
  const Program& program = this->program(call, refusal);

  std::byte* payload = exchange_.begin(call, deadline);
  counts_.assign(2 * n * n, 0);
  std::uint64_t* counts = &counts_[2 * n * own];
  std::size_t total = 0;
  for (std::size_t r = 0; r < n; ++r) {
    total += counts[r] = blocks()[own * n + r].count;
    counts[n + r] = blocks()[r * n + own].count;
  }
  call.count = total;
  // The table goes with the call in any case.
  const std::size_t most_nbytes = std::max(policy().with_call_nbytes(), table_nbytes);
  const std::size_t most = (most_nbytes - table_nbytes) / element_nbytes;
  const Path path = path_of(call, kExecutor, table_nbytes + total * element_nbytes, most_nbytes);
  call.eager = path == Path::kWithCall;
  if (call.eager) payload = exchange_.room(table_nbytes + total * element_nbytes);
  std::memcpy(payload, counts, table_nbytes);
  std::size_t published = 0, written = 0;
  shm::ZeroCopy* const family = refusal ? nullptr : zero_copy_way(call, path, table_nbytes);
  if (call.eager) {
    written = eager_way(call).write(blocks(), reduction, payload + table_nbytes, payload_stores_,
                                    !group_.shares_cores());
  } else if (family != nullptr) {
    published = publish_buffers(*family, call, payload + table_nbytes);
  }
  exchange_.announce(call, table_nbytes + published + written,
                     published > 0 ? family->payload_kind() : shm::PayloadKind::kInput);
  if (call.eager) eager_way(call).keep(blocks(), reduction);
  await_all(refusal, deadline);
  for (std::size_t r = 0; r < n; ++r) {
    if (r != own) std::memcpy(&counts_[2 * n * r], exchange_.payload_of(r), table_nbytes);
  }
  check_counts(call);
  if (family != nullptr && family->is_open(announced(table_nbytes))) {
    family->run(blocks(), reduction, announced(table_nbytes), call, deadline);
    family->done();
    return exchange_.end();
  }

  bool all_eager = true;
  for (std::size_t from = 0; from < n; ++from) {
    const std::uint64_t* theirs = &counts_[2 * n * from];
    const bool eager = from == own ? call.eager : exchange_.call_of(from).eager != 0;
    all_eager = all_eager && eager;
    if (eager) {
      check_sum(call, from, theirs, most);
      const std::size_t before = std::accumulate(theirs, theirs + own, std::uint64_t{0});
      const Chunk& block = blocks()[from * n + own];
      if (from != own && block.count > 0) {
        std::memcpy(block.output,
                    exchange_.payload_of(from) + table_nbytes + before * element_nbytes,
                    block.count * element_nbytes);
      }
    }
    for (std::size_t to = 0; to < n; ++to) {
      blocks()[from * n + to].count = eager ? 0 : theirs[to];
    }
  }
  if (!all_eager && !refusal) {
    group_.use(shm::Area::kOutboxes);
    executor_.run(program, chunks(call, program.num_chunks), reduction, call, deadline);
  }
  if (family != nullptr) family->done();
  exchange_.end(/*raises=*/refusal != nullptr);
  if (refusal) std::rethrow_exception(refusal);
}

void Communicator::check_counts(const Call& call) {
  const std::size_t n = world_size();
  std::string disagreements;
  for (std::size_t from = 0; from < n; ++from) {
    check_sum(call, from, &counts_[2 * n * from], kMostElements);
    for (std::size_t to = 0; to < n; ++to) {
      const std::uint64_t sent = counts_[2 * n * from + to];
      const std::uint64_t expected = counts_[2 * n * to + n + from];
      if (sent == expected) continue;
      if (!disagreements.empty()) disagreements += ", ";
      disagreements += group_.members.name(static_cast<int>(from)) + " has " +
                       std::to_string(users_count(call.users, sent)) + " elements for " +
                       group_.members.name(static_cast<int>(to)) + ", which expects " +
                       std::to_string(users_count(call.users, expected));
    }
  }
  if (disagreements.empty()) return;
  exchange_.end(/*raises=*/true);
  throw Error(ErrorKind::kMismatch, group_.members.name(rank()) + " in all_to_all #" +
                                        std::to_string(call.sequence) + ": " + disagreements +
                                        ". Nothing was sent.");
}

// Checks the counts that a rank has sent: their sums must be places in memory, so no rank may send
// more.
void Communicator::check_sum(const Call& call, std::size_t from, const std::uint64_t* counts,
                             std::uint64_t most) {
  for (int to = 0; to < world_size(); ++to) {
    if (counts[to] > most) {
      throw group_.fail(ErrorKind::kSystem,
                        group_.members.name(rank()) + " in " +
                            describe_numbered(call, group_.members) +
                            ": the shared memory of the group is damaged: the announcement of " +
                            group_.members.name(static_cast<int>(from)) +
                            " holds counts that no rank of ringcomm writes");
    }
    most -= counts[to];
  }
}

}  // namespace ringcomm
