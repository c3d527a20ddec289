// One rank's view of a group on its GPU: NCCL's communicators, the streams, and what is under way.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "nccl/api.h"
#include "nccl/comms.h"
#include "nccl/handles.h"
#include "nccl/messages.h"
#include "nccl/watchdog.h"
#include "shm/board.h"
#include "shm/group.h"
#include "store.h"
#include "streams/collectives.h"
#include "streams/executor.h"

namespace ringcomm::nccl {

// Device memory that is freed with the last holder, for use on the given stream.
using Allocate = std::function<std::shared_ptr<void>(std::size_t nbytes, cudaStream_t)>;

struct Options {
  Algorithm algorithm = Algorithm::kAuto;
  streams::Layout layout;
  int max_ctas = 32;  // of one rank, in all its channels: few, so that sums have room
};

// The collectives are enqueued behind what is on stream(), which then waits for their end; the host
// waits for nothing but the making of communicators. Methods may be called by any thread. They
// throw Error; so they do, all of them, once the group has failed.
class Communicator : public streams::Collectives {
 public:
  // All ranks construct theirs together, each with `device` as its current one. `group` and `store`
  // must outlive it.
  Communicator(shm::Group& group, Store& store, int device, const Options& options,
               const Allocate& allocate, Timeout timeout);
  // Aborts what is not done.
  ~Communicator() override;

  int device() const { return device_; }
  cudaStream_t stream() const { return origin_.get(); }

  // Enqueues messages that belong together, so that none of them waits for another. Message i
  // begins after `begin` and is done at the end of the i-th of the streams returned.
  std::vector<cudaStream_t> run(const std::vector<Message>& messages, cudaEvent_t begin,
                                Timeout timeout);

  // Null as long as all is well. What the group failed of otherwise: results cannot be trusted.
  std::exception_ptr failure() const;

  // Waits until all is done, and frees what NCCL holds. All ranks call it.
  void shut_down(Timeout timeout);
  // Ends what is under way; later calls raise `reason`.
  void abort(const std::string& reason);

 private:
  using Executor = streams::Executor<Api>;

  // What a channel holds.
  struct Lane {
    std::shared_ptr<void> scratch;
    Stream communication, reduction;
    Event communicated;
    std::vector<Event> reduced;
  };

  void run(Call call, const Program& program, std::span<const Chunk> chunks,
           const Reduction& reduction, Timeout timeout) override;
  Executor make_executor(const Options& options, const Allocate& allocate);
  // False if something has failed before.
  bool set_failure(const Error& error);
  // Records what has failed, tells the other ranks and ends what is under way.
  void fail(const Error& error);
  void end();
  template <typename Body>
  void guarded(const std::string& what, Body&& body);
  void publish_comms();
  std::unique_ptr<Comms> make_comms(Store& store, const Options& options, Timeout timeout);

  shm::Group& group_;
  shm::Board board_;
  const int device_;
  // Held while this rank is inside NCCL, and while its communicators are aborted.
  std::mutex mutex_;
  mutable std::mutex failure_mutex_;
  std::exception_ptr failure_;             // guarded by failure_mutex_
  std::vector<ncclComm_t> interruptible_;  // so are these: all communicators
  Api api_;
  Stream origin_;
  Event began_;
  std::unique_ptr<Comms> comms_;  // by channel; null if there is but one rank
  std::vector<Lane> lanes_;
  Executor executor_;
  Messages messages_;
  std::uint64_t sequence_ = 0;
  std::optional<Watchdog> watchdog_;
};

}  // namespace ringcomm::nccl
