// What lies where in the shared memory of one group.
//
//   base                  made with the group: all that is needed to know which ranks live
//     group header          which rank failed first, and the text every rank then raises
//     rank state    [n]     what each rank is doing, for its peers' error messages
//     mailed        [n]     to which peers each rank has a mail box, a bit each
//   device        [n]     what each rank has enqueued on its device, and with what it meets its
//                         peers there
//   announcements [n]     the call a rank makes, with its whole input when that is small; two; and
//                         how far it has come in a larger one, in each lane
//   payloads      [n]     inputs of several KiB, each behind the one before it
//   outboxes      [n]     slices of what is larger, in each lane
//   mail boxes    [n][n]  send and recv, one box per direction of a pair
//
// In a group that spans hosts each host has such a memory. The ranks of other hosts have their
// states and announcements there, too, which the host's leader keeps up to date
// (hosts/announcement_forwarder.h, hosts/heartbeat.h).
//
// Every area begins at a page. Apart from the base, an area has only an address until its rank
// makes it, which takes the memory: a group that never sends a message has no mail boxes. That rank
// writes the area and others read it. The one exception is the failure record, which the first
// rank to fail claims. All counters only grow.
//
// A rank can give back what holds no state, its payloads, outboxes and the slots of its mail boxes,
// while no rank is in a call; it makes them again when it uses them.
//
// Invariant: no rank touches an area before its rank has made it. A rank makes its announcements
// before it announces anything, its payloads before it announces one there, its outboxes before it
// publishes a slice in them, and it writes all that it has made to its state (a mail box: to its
// bits).
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/call.h"
#include "core/device_board.h"
#include "core/group.h"
#include "core/policy.h"
#include "core/process.h"
#include "core/text.h"
#include "plan/network.h"
#include "setup/group_config.h"
#include "shm/doorbell.h"

namespace ringcomm::shm {

// Two cache lines: what one core writes and another reads must not share a prefetched pair.
inline constexpr std::size_t kLine = 128;
inline constexpr std::size_t kPage = 4096;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// What a rank makes; a mail box for one peer at a time.
enum class Area { kBase, kDevice, kAnnouncements, kPayloads, kOutboxes, kMail };
inline constexpr int kNumAreas = 6;
const char* name(Area area);

inline constexpr std::uint64_t kMagic = 0x72696e67636f6d61;  // "ringcoma"

// The state of the group that is being made. kAgain: in another file. kMade: it is made, and the
// first of the host waits until no rank reads any more what the set-up has written to the store.
enum class Setup : std::uint32_t { kPending, kDone, kAgain, kRefused, kMade };

// Why a group failed.
using FailureText = FixedText<2048>;

struct alignas(kLine) GroupHeader {
  std::uint64_t magic;
  std::uint64_t cookie;  // random: a rank that finds it here has found the right memory
  std::uint64_t nbytes;
  std::int32_t world_size;
  FixedText<64> group;  // its name
  // Between its hosts (setup/group_config.h); written before setup is done.
  FixedText<16> engine;
  Link link;
  std::int64_t heartbeat_timeout;  // milliseconds

  // The three above.
  InterHostConfig inter_host() const;
  std::uint32_t num_tuned;
  TunedRule tuned[kMostTuned];  // for groups of this size
  // For programs that look at the group: the file that these are from, what sums depend on, and how
  // calls go. The host's first rank writes it when all else of the group is made.
  FixedText<256> tuned_by;
  Reproducible reproducible;
  SizeClass size_classes[kMostSizeClasses];
  std::atomic<std::uint32_t> num_size_classes;
  std::atomic<Setup> setup;
  // Why the group was refused, if it was; written before setup says so. It has a place of its own,
  // as a rank that cannot go on may record a failure at the same time.
  ErrorKind refusal_kind;
  FailureText refusal;
  // 0: no rank failed; 1: a rank is writing the record; 2: it can be read.
  std::atomic<std::uint32_t> failed;
  ErrorKind kind;
  std::int32_t reporter;
  FailureText text;
  std::atomic<std::int64_t> shrink_turn;    // shm/shrink.cpp; nanoseconds of Clock
  std::atomic<std::uint32_t> dump_request;  // shm/dump_listener.h
};

enum class Closed : std::uint32_t {
  kNo,
  kAborted,  // it ended what was under way, and may still go on in a smaller group
  kLeft,     // for good
};

// How long a rank's collectives have taken so far: programs outside read it. The rank itself alone
// adds to it.
struct Durations {
  // The first bucket counts what took up to 1 us, each next one what took up to 4 x as long, and
  // the last one all that took longer.
  static constexpr int kBuckets = 14;

  std::atomic<std::uint64_t> counts[kBuckets];
  std::atomic<std::uint64_t> nanoseconds;  // altogether

  static int bucket(std::chrono::nanoseconds duration) {
    const auto microseconds = static_cast<std::uint64_t>((duration.count() + 999) / 1000);
    if (microseconds <= 1) return 0;
    return std::min((static_cast<int>(std::bit_width(microseconds - 1)) + 1) / 2, kBuckets - 1);
  }

  void add(std::chrono::nanoseconds duration) {
    duration = std::max(duration, std::chrono::nanoseconds{0});
    increase(counts[bucket(duration)], 1);
    increase(nanoseconds, static_cast<std::uint64_t>(duration.count()));
  }

 private:
  static void increase(std::atomic<std::uint64_t>& value, std::uint64_t by) {
    value.store(value.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }
};

// Those of one collective, without the calls that ended in an error.
struct CollectiveTimes {
  Durations waited;       // for the ranks that had not called it yet; one for each call
  Durations transferred;  // from then on, in calls whose data did not travel with the announcement
};

struct alignas(kLine) RankState {
  Process process;
  FixedText<64> host;
  cpu_set_t cores;  // that it may run on
  std::uint64_t global_rank;
  std::atomic<std::uint32_t> joined;  // what stands above has been written
  std::uint32_t is_locked;            // the rank's place in the file, by its process
  std::atomic<std::uint32_t> left;    // it knows that the group is made, or has been refused
  std::int32_t host_number;           // core/group.h; written before setup is done
  std::atomic<std::uint32_t> areas;   // those it has made, by 1 << Area
  // Whether the rank is there. It writes `closed` itself; the leader of its host writes the rest.
  struct Liveness {
    std::atomic<Closed> closed;
    std::atomic<std::uint32_t> ended;       // its process has
    std::atomic<std::uint32_t> has_spoken;  // another host's leader: a message of it has come
    // Nanoseconds of Clock. `heard`: when its heartbeat ran, or when another host's leader sent its
    // last message. `lost`: since when there is no connection to another host's leader, or 0.
    std::atomic<std::int64_t> heard, lost;
  } liveness;
  struct Wait {                       // of a collective; shm/backoff.h
    std::atomic<std::int32_t> peer;   // that it has been waiting for, or -1
    std::atomic<std::int64_t> since;  // nanoseconds of Clock, if it waits
  } wait;
  std::atomic<std::int64_t> unmade_since;  // nanoseconds of Clock: of a call that raised before it
                                           // was made, and may be made again; 0: there is none
  std::atomic<std::uint64_t> completed;    // sequence number of its last complete collective
  std::atomic<std::uint64_t> nbytes;       // of its tensors in collectives, altogether
  std::atomic<std::uint64_t> held;         // bytes of shared memory it has made
  // The message, of those that are not done, that it has waited for longest, once that is long.
  struct MailWait {
    std::atomic<std::int32_t> peer;   // any or none: -1
    std::atomic<std::int64_t> since;  // nanoseconds of Clock; 0: it waits for none
    FixedText<128> message;           // may be read while it is written
  } mail;
  struct MonitoredBarrier {               // numbers of barriers
    std::atomic<std::uint64_t> arrived;   // on rank 0 the one it has released
    std::atomic<std::uint64_t> given_up;  // on rank 0 only
  } barrier;
  DeviceState device;
  struct Shrink {  // shm/shrink.cpp
    std::atomic<std::uint64_t> joined, built, call;
  } shrink;
  struct Dump {                           // shm/dump_listener.h
    std::atomic<std::uint32_t> listens;   // the rank has a thread that answers requests
    std::atomic<std::uint32_t> wakeups;   // a futex, on which that thread sleeps
    std::atomic<std::uint32_t> answered;  // the last request that it has answered
  } dump;
  Doorbell progress_bell;  // the rank rings it after each of its announcements and actions
  Doorbell mail_bell;  // others ring it after what they do to a mail box of theirs and the rank's
  alignas(kLine) CollectiveTimes times[kNumCollectives];
};

// What a payload says of the rank's input: what it is; where it lies (shm/zero_copy.h); or that the
// rank has none, and which ranks it can reach.
enum class PayloadKind : std::uint32_t { kInput, kPlace, kReach };

// The payload lies behind the announcement.
inline constexpr std::uint32_t kBehind = ~std::uint32_t{0};

// What a peer reads of a call that matches its own begins with a cache line of its own, and is all
// in that line if it is small: to fetch a line from another core is most of what a small call
// costs.
struct alignas(kLine) Announcement {
  Call call;                                           // read only where the digests differ
  alignas(kLine) std::atomic<std::uint64_t> sequence;  // released last: all else is complete
  std::uint64_t digest;                                // of the call
  std::uint32_t payload_nbytes;
  std::uint32_t payload_at;  // in the rank's payloads, or kBehind
  PayloadKind payload_kind;
  alignas(32) std::byte first_of_payload[32];

  std::byte* payload() { return first_of_payload; }  // and more behind it
};

// Number of the collective << kActionBits | number of actions that are done. Grows, and wraps.
inline constexpr int kActionBits = 40;

struct alignas(kLine) Progress {
  std::atomic<std::uint64_t> done;
};

// Two, so that all slots stay in a core's cache. Between hosts more: a round takes as long as the
// trips in it, and a lane does one round after the other.
inline constexpr int kLanes = 2;
inline constexpr int kLanesAcrossHosts = 4;
inline constexpr int kMailSlots = 4;

// Why a rank's arguments were refused.
using Reason = FixedText<256>;

// Messages are numbered from 1.
struct alignas(kLine) MailEdge {
  // The sender's: the slots it has written, and the last message that it writes no more of.
  alignas(64) std::atomic<std::uint64_t> posted;
  std::atomic<std::uint64_t> ended;
  // The receiver's: the slots it has read, and the last message that it has refused, because it
  // wants something else in its place, or can receive nothing there.
  alignas(64) std::atomic<std::uint64_t> taken;
  std::atomic<std::uint64_t> refused;
  std::uint64_t wanted_count;  // written before `refused`, as what follows
  UsersDType wanted_users;
  DType wanted_dtype;
  Reason wanted_none;  // empty: it wants something
};

// A message is one or more mail slots; every slot repeats what the message is.
struct alignas(64) MailSlot {
  std::uint64_t message;
  std::uint64_t message_nbytes;
  std::uint64_t offset;
  std::uint64_t nbytes;
  std::int32_t tag;
  UsersDType users;
  DType dtype;
  std::uint8_t refused;  // 1: the sender's arguments were; the message is why, in one slot

  std::byte* data() { return reinterpret_cast<std::byte*>(this + 1); }
};

// Where areas of one kind begin: one per rank, or one per rank and peer.
struct Region {
  std::size_t at;
  std::size_t stride;  // whole pages
};

// Where areas begin follows from the world size alone, so that all ranks agree on every address.
// Large groups get smaller boxes.
struct Geometry {
  explicit Geometry(int world_size);
  // The ranks are placed so. To be called before any rank announces anything: between hosts, what
  // is small depends on their network.
  void spread(const Placement& placement, const InterHostConfig& inter_host);
  // Every payload and every slot in one place, for which a fraction of the memory does.
  void do_without_rotation();

  std::size_t state_at(int rank) const { return states_at + rank * sizeof(RankState); }
  // Two per rank, in turn.
  std::size_t announcement_at(int rank, std::uint64_t sequence) const {
    return announcements.at + static_cast<std::size_t>(rank) * announcements.stride +
           sequence % 2 * announcement_nbytes();
  }
  std::size_t announcement_nbytes() const { return sizeof(Announcement) + eager_nbytes; }
  // The size of a rank's area.
  std::size_t announcements_nbytes() const;

  int world_size;
  std::size_t eager_nbytes;      // the largest payload of an announcement
  std::size_t small_nbytes;      // the largest input that travels in it
  std::size_t payloads_nbytes;   // per rank; 0: all lie behind their announcements
  std::size_t slots_nbytes;      // the most that a round's slots take, per rank and lane
  std::size_t outbox_nbytes;     // likewise, for slots of several calls
  std::size_t mail_slot_nbytes;  // data in one mail slot

  std::size_t states_at;
  std::size_t mailed_at;
  std::size_t mailed_words;  // per rank
  std::size_t base_nbytes;
  Region device, announcements, payloads, outboxes, mail;
  std::size_t nbytes;  // of addresses; memory is taken by use
};

// A copy of shared memory, to be checked and then used. A faulty process may write to the original
// at any time, so the compiler must not read it a second time.
template <typename T>
T read_once(const T& shared) {
  static_assert(std::is_trivially_copyable_v<T>);
  T copy;
  std::memcpy(static_cast<void*>(&copy), static_cast<const void*>(&shared), sizeof(copy));
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return copy;
}

// Uses memory that one core writes and others read in rotation.
//
// To write a line that another core has read takes four times as long while that core still has it
// in its own caches. So what is written next lies behind what was written last, until the memory
// ends, which is when the others' caches have lost what was at its beginning.
class RingAllocator {
 public:
  // Where so many bytes lie in memory of `most`, which is at least as much.
  std::size_t take(std::size_t nbytes, std::size_t most) {
    const std::size_t at = next_ + nbytes <= most ? next_ : 0;
    next_ = at + nbytes;
    return at;
  }

 private:
  std::size_t next_ = 0;
};

}  // namespace ringcomm::shm
