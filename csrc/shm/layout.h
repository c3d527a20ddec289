// What lies where in the shared-memory segment of one group.
//
//   group header          who failed first, and the text every rank then raises
//   rank state    [n]     what each rank is doing, for its peers' error messages
//   device call   [n][kDeviceCalls]  what each rank has enqueued on its device
//   device greeting [n][n]  with what a rank meets a peer for their first message between devices
//   announcement  [n][2]  the call a rank makes, with its whole input when that is small
//   edge          [n][n][lanes]   which slices a rank has published for a peer, which were read
//   outbox        [n][lanes]      the slices themselves, cut into slots as the plan needs
//   mail edge     [n][n]  and mail slots [n][n][kMailSlots]: send and recv, one box per pair
//
// Everything here is written by one rank and read by others; the one exception is the failure
// record, which the first rank to fail claims. All counters only grow.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shm/process.h"
#include "status.h"

namespace ringcomm::shm {

// Two cache lines: what one core writes and another reads must not share a prefetched pair.
inline constexpr std::size_t kLine = 128;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

struct alignas(kLine) GroupHeader {
  std::uint64_t magic;
  std::uint64_t nbytes;
  // 0: nobody failed; 1: somebody is writing the record; 2: it can be read.
  std::atomic<std::uint32_t> failed;
  ErrorKind kind;
  std::int32_t reporter;
  char text[1024];
};

struct alignas(kLine) RankState {
  Process process;
  std::atomic<std::uint32_t> closed;     // the rank has left the group in good order
  std::atomic<std::int32_t> waits_for;   // the peer it has been waiting for, or -1
  std::atomic<std::uint64_t> completed;  // sequence number of its last complete collective
  // Monitored barriers: the number this rank has arrived at; on rank 0 the one it has released,
  // and the one it has given up on.
  std::atomic<std::uint64_t> barrier;
  std::atomic<std::uint64_t> rejected_barrier;
  // Collectives on a device, numbered on their own: the last one enqueued, the last one done.
  std::atomic<std::uint64_t> device_enqueued;
  std::atomic<std::uint64_t> device_completed;
  std::atomic<std::uint32_t> device_joining;  // this rank is connecting its device, or has
  std::uint64_t device_settings[4];           // Board::Settings, written before that
  std::atomic<std::uint32_t> device_closing;  // Board::Closing
};

// Device call number s is in place s % kDeviceCalls as long as its sequence says s. It is kept in
// words, as it may be read while it is overwritten.
inline constexpr int kDeviceCalls = 64;
inline constexpr std::size_t kCallWords = (sizeof(Call) + 7) / 8;

struct alignas(64) DeviceCall {
  std::atomic<std::uint64_t> sequence;
  std::atomic<std::uint64_t> words[kCallWords];
};

inline constexpr std::size_t kGreetingNbytes = 128;  // a ncclUniqueId

struct alignas(64) DeviceGreeting {
  std::atomic<std::uint32_t> ready;
  std::byte data[kGreetingNbytes];
};

struct alignas(kLine) Announcement {
  std::atomic<std::uint64_t> sequence;  // released last: call and payload are complete
  Call call;

  std::byte* payload() { return reinterpret_cast<std::byte*>(this + 1); }
};

// One direction between two ranks, in one lane. Slice number p is announced in
// published[p % kUnread] as (p + 1) << 8 | slot, and read once taken > p.
inline constexpr int kUnread = 8;

struct alignas(kLine) Edge {
  alignas(64) std::atomic<std::uint64_t> published[kUnread];
  alignas(64) std::atomic<std::uint64_t> taken;
};

inline constexpr int kLanes = 2;
inline constexpr int kMailSlots = 4;

struct alignas(kLine) MailEdge {
  alignas(64) std::atomic<std::uint64_t> posted;
  alignas(64) std::atomic<std::uint64_t> taken;
};

// A message is one or more mail slots; every slot repeats what the message is.
struct alignas(64) MailSlot {
  std::uint64_t message_nbytes;
  std::uint64_t offset;
  std::uint64_t nbytes;
  std::int32_t tag;
  DType dtype;

  std::byte* data() { return reinterpret_cast<std::byte*>(this + 1); }
};

// Sizes follow from the world size alone, so that all ranks agree on every address. Large groups
// get smaller boxes: the whole segment stays below about 60 MiB, less than a container's usual
// 64 MiB of /dev/shm.
struct Geometry {
  explicit Geometry(int world_size);

  int world_size;
  std::size_t eager_nbytes;      // the largest input that travels with its announcement
  std::size_t outbox_nbytes;     // per rank and lane
  std::size_t mail_slot_nbytes;  // data in one mail slot

  std::size_t states_at;
  std::size_t device_calls_at;
  std::size_t device_greetings_at;
  std::size_t announcements_at;
  std::size_t edges_at;
  std::size_t outboxes_at;
  std::size_t mail_edges_at;
  std::size_t mail_slots_at;
  std::size_t nbytes;
};

}  // namespace ringcomm::shm
