// What an executor of streams works with: the calls that it makes, and the streams, events and
// scratch of each channel. The calls go to CUDA and NCCL (gpu/nccl/api.h), to a counter
// (gpu/streams/count.cpp), or in tests to a simulator of streams.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/pipeline.h"
#include "reduce/reduction.h"

namespace ringcomm::streams {

// The reasons for each wait. The tests leave each of them out and see wrong sums.
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

// T::Stream, Event and Comm are handles, cheap to copy.
template <typename T>
concept StreamApi =
    requires(T& api, typename T::Stream stream, typename T::Event event, typename T::Comm comm,
             std::byte* data, const void* const* inputs, std::size_t size, int number,
             const Reduction& reduction, Wait why, const Pipeline& pipeline) {
      // The messages between the two are of one or more channels, and none waits for another.
      api.group_start();
      api.send(data, /*nbytes=*/size, /*peer=*/number, comm, stream);
      api.recv(data, /*nbytes=*/size, /*peer=*/number, comm, stream);
      api.group_end();

      api.reduce(reduction, inputs, /*num_inputs=*/number, /*output=*/data, /*count=*/size, stream);
      api.copy(/*to=*/data, /*from=*/inputs[0], /*nbytes=*/size, stream);
      api.record(event, stream);
      api.wait(stream, event, why);

      // A profiler shows this range around a tick.
      api.push_range(pipeline, /*tick=*/number);
      api.pop_range();
    };

// One channel's share of the device.
template <StreamApi Api>
struct Channel {
  typename Api::Comm comm;
  // Channel 0's communication stream is the one that calls begin and end on.
  typename Api::Stream communication, reduction;
  std::byte* scratch;  // Layout::channel_scratch_nbytes() of them, aligned to kAlignment
  typename Api::Event communicated;
  std::vector<typename Api::Event> reduced;  // Layout::slices_in_flight of them
};

}  // namespace ringcomm::streams
