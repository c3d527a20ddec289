// What an executor of streams works with: the calls it makes, the order it keeps, and one channel's
// share of the device.
//
// Api makes the calls (nccl/api.h; in tests a simulator of streams):
//
//   Stream, Event, Comm                          handles, cheap to copy
//   group_start(); group_end()                   between them, messages of one or more channels
//   send(data, nbytes, peer, Comm, Stream); recv(data, nbytes, peer, Comm, Stream)
//   reduce(Reduction, inputs, num_inputs, output, count, Stream)
//   copy(to, from, nbytes, Stream)
//   record(Event, Stream); wait(Stream, Event, Wait)
//   push_range(Pipeline, tick); pop_range()      what a profiler shows around a tick
#pragma once

#include <cstddef>
#include <vector>

namespace ringcomm::streams {

// What waits for what. The tests take each of them away and see the sums go wrong.
enum class Wait {
  kBegin,            // nothing begins before the caller's stream has come this far
  kArrived,          // no slice is added before it has arrived
  kAddedBeforeSend,  // no slice is sent before it has been added to
  kAddedBeforeRecv,  // no slice arrives in scratch that is still being read
  kSentBeforeScale,  // no slice is scaled into scratch that is still being sent
  kAllArrived,       // the caller's stream does not go on before all messages are through
  kAllAdded,         // nor before all sums are stored
};
inline constexpr int kNumWaits = 7;

template <typename Api>
struct Channel {
  typename Api::Comm comm;
  // Channel 0's communication stream is the one that calls begin and end on.
  typename Api::Stream communication, reduction;
  std::byte* scratch;  // Layout::channel_scratch_nbytes() of them, aligned to kAlignment
  typename Api::Event communicated;
  std::vector<typename Api::Event> reduced;  // Layout::slices_in_flight of them
};

}  // namespace ringcomm::streams
