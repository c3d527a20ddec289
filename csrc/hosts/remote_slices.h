// The slices that an executor sends to ranks on other hosts, and gets from them.
//
// On its host a rank publishes a slice by writing it to a slot of its outbox, where peers read it
// (shm/executor.h). What goes to other hosts it writes to memory of its own, and a rank there gets
// it as a message, for which it has posted a receive ahead of time: the next slices of each lane
// have a place each, in the order in which the rank's program takes them. So payload streams while
// the rank still works on what came before, without requests; and as there are kAhead bytes of
// places at both ends, a network that is far or slow is kept full.
//
//     program of this rank    ... action 7   action 8   action 9 ...     (lane 0, round 4)
//     takes from other hosts      rank 5's     --       rank 5's, rank 9's
//     receive buffers, in turn     [3]                     [0]      [1]
//     sends to other hosts          --       rank 5      rank 5
//     send buffers, in turn                    [2]         [3]
//
// Invariant: a receive buffer belongs to one message from when its receive is posted until the
// action that takes it is done, and a send buffer is written again only when all messages sent from
// it are done. Both sides number the messages of a pair alike: by call, round and plan.
//
// No order of execution can deadlock, as long as there are no fewer send buffers than the program
// has slots: what leaves from the j-th of S send buffers waits until the (j-S)-th has readers that
// have posted receives for it, which is no more than plan/wiring.h's proof lets it wait for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "hosts/engine.h"
#include "hosts/streams.h"
#include "plan/program.h"
#include "shm/remote_hosts.h"

namespace ringcomm::hosts {

class LinkedSlices final : public RemoteSlices {
 public:
  // The group must span hosts.
  LinkedSlices(Group& group, links::Engine& links, int num_lanes);
  ~LinkedSlices() override;
  LinkedSlices(const LinkedSlices&) = delete;
  LinkedSlices& operator=(const LinkedSlices&) = delete;

  std::size_t one_shot_nbytes() const override { return links::kOneShot; }
  void begin(const Program& program, std::span<const std::size_t> chunk_nbytes,
             std::size_t slot_nbytes) override;
  bool is_ready(int lane, const Action& action) const override;
  const std::byte* slice(int lane, const Action& action, std::size_t i) const override;
  void take(int lane, const Action& action) override;
  std::byte* send_buffer(int lane) override;
  void send(int lane, std::size_t round, const Action& action, std::size_t nbytes) override;
  void each_awaited(int lane, const Action& action,
                    const std::function<void(int)>& visit) const override;
  bool goes_to_others(const Action& action) const override;

 private:
  // Bytes of places of a lane, at each end.
  static constexpr std::size_t kAhead = 512 << 10;

  struct Slice {
    links::Request request;
    int peer = -1;
  };
  struct SendBuffer {
    std::deque<Slice> slices;  // what was sent from it last
    std::unique_ptr<std::byte[]> memory;
    std::size_t nbytes = 0;  // of memory
  };
  struct RemoteLane {
    // Where the next receive is to be posted for: behind those that are.
    std::size_t round = 0;
    std::size_t action = 0;
    // Numbers of arrivals; their places are used in turn.
    std::uint64_t posted = 0;
    std::uint64_t taken = 0;
    std::unique_ptr<Slice[]> arrivals;
    std::unique_ptr<std::byte[]> memory;
    std::uint64_t sent = 0;  // likewise
    std::deque<SendBuffer> send_buffers;
  };

  void post_ahead(int lane);
  std::size_t num_from_others(const Action& action) const;
  Slice& arrival(const RemoteLane& lane, std::uint64_t number) const {
    return lane.arrivals[number % num_places_];
  }
  std::byte* memory(const RemoteLane& lane, std::uint64_t number) const {
    return lane.memory.get() + number % num_places_ * slot_nbytes_;
  }
  links::Tag tag(int lane, std::uint64_t number) const;

  Group& group_;
  links::Engine& links_;
  const int num_lanes_;
  const Program* program_ = nullptr;
  std::span<const std::size_t> chunk_nbytes_;
  std::size_t slot_nbytes_ = 0;
  std::size_t num_rounds_ = 0;
  // The places of each lane, at each end; and for how many arrivals and bytes there is memory.
  std::size_t num_places_ = 0;
  std::size_t num_arrivals_ = 0;
  std::size_t arrival_nbytes_ = 0;
  std::vector<std::uint64_t> sent_, received_;  // messages of earlier runs, by peer
  std::vector<std::uint64_t> per_round_sent_, per_round_received_;  // by peer
  std::vector<RemoteLane> lanes_;
};

}  // namespace ringcomm::hosts
