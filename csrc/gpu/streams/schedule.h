// A schedule: a program as the ordered commands that one rank enqueues, for chunks of given counts
// at any addresses. It is made once and then carried out call after call.
//
// Each channel has two streams. At each tick of the pipeline (plan/pipeline.h) the communication
// streams run one group of sends and receives; what is to be added arrives in scratch, and the
// reduction stream adds it afterwards, while the next group is under way. A ring whose windows have
// two slices:
//
//      communication    | group 0 | group 1 | group 2: sends slice 0 | group 3: sends slice 1 |
//                                 \         \ ^                        ^
//      reduction                   | add 0  | '| add 1 |  -------------'
//
// A slice's value lies in the input, in the output, or, if it is no output of this rank, in
// scratch. Data that is only copied is received in its final place, unless something is sent from
// there in the same step: then it is received in scratch and copied afterwards.
//
// Streams wait for each other only where they must (Wait says why). If a
// window has only one slice, sums have nothing to overlap with and run on the communication stream.
// The caller's work is on channel 0's communication stream: a direct all-reduce of a small buffer
// is two groups with a sum between them, all on one stream.
//
// Invariant: whatever two streams of a channel both touch is ordered by an event, directly or
// through what was enqueued before it. The tests run schedules in random orders to see it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "core/chunks.h"
#include "gpu/streams/layout.h"
#include "plan/pipeline.h"
#include "plan/program.h"
#include "reduce/types.h"

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

struct StreamId {
  enum Kind : std::uint8_t { kCommunication, kReduction };
  int channel;
  Kind kind;

  bool operator==(const StreamId&) const = default;
};

// The stream that a call begins and ends on.
inline constexpr StreamId kOrigin{0, StreamId::kCommunication};

struct EventId {
  enum Kind : std::uint8_t { kBegan, kCommunicated, kReduced };
  Kind kind;
  int channel = 0;
  int index = 0;  // of Channel::reduced

  bool operator==(const EventId&) const = default;
};

// The place of data.
struct Place {
  enum Where : std::uint8_t { kInput, kOutput, kScratch };
  Where where;
  int channel;
  int chunk;
  int slot;           // of the channel's scratch
  std::size_t first;  // element of the chunk
};

// A piece of a chunk, to or from a peer.
struct PieceTransfer {
  bool is_send;
  int peer;
  Place place;
  std::size_t count;  // elements
};

// The commands.
struct BeginTick {
  int tick;
};
struct EndTick {};
struct Record {
  EventId event;
  StreamId stream;
};
struct AwaitEvent {
  StreamId stream;
  EventId event;
  Wait why;
};
struct Group {
  int first_transfer, num_transfers;
};
// A sum of several inputs, or a single one scaled.
struct Sum {
  StreamId stream;
  int first_input, num_inputs;
  Place output;
  std::size_t count;
  int scaled_input;  // or -1
  bool finish;       // nothing more is added
};
struct Copy {
  StreamId stream;
  Place from, to;
  std::size_t count;
};
// A piece that begins and stays on this rank is copied, or scaled, from the input to the output.
struct Keep {
  StreamId stream;
  int chunk;
  Range range;
};
using Command = std::variant<BeginTick, EndTick, Record, AwaitEvent, Group, Sum, Copy, Keep>;

struct Schedule {
  Pipeline pipeline;
  std::size_t slot_nbytes;
  std::vector<Command> commands;
  std::vector<PieceTransfer> transfers;  // of the groups
  std::vector<Place> inputs;             // of the sums
};

// The addresses do not matter, except whether a chunk's input is its output.
// scales: every rank multiplies its input before it is added (premul_sum). Throws Error
// (kInvalidArgument) for a plan that needs more scratch than the layout has; all ranks would throw.
Schedule make_schedule(int rank, const Layout& layout, const Program& program,
                       std::span<const Chunk> chunks, std::size_t element_nbytes, bool scales);

}  // namespace ringcomm::streams
