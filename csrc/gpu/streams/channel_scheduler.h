// Schedules one channel: it knows where the values are, which scratch is free, and how far the two
// streams have come.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include "gpu/streams/schedule.h"

namespace ringcomm::streams {

// The input of a schedule.
struct Work {
  Work(int rank, const Layout& layout, const Program& program, std::span<const Chunk> chunks,
       std::size_t element_nbytes, bool scales);

  const int rank;
  const Layout& layout;
  const Program& program;
  const std::span<const Chunk> chunks;
  const std::size_t element_nbytes;
  const bool scales;
  const Pieces pieces;
  const bool overlaps;  // sums run beside messages
  // By step: the actions that send, and those that receive.
  std::vector<std::vector<const Action*>> sends, recvs;
};

class ChannelScheduler {
 public:
  ChannelScheduler(const Work& work, int channel, Schedule& schedule);

  void begin();

  // The three parts of one tick: finding what is sent and received, then the commands before that
  // group of transfers, and those after it.
  void look_at(int tick);
  const std::vector<PieceTransfer>& transfers() const { return transfers_; }
  void before_group();
  void after_group();

  void end();

 private:
  // The sums of one tick are a batch. Batches are numbered, and so are groups of messages.
  static constexpr int kNone = -1;
  static constexpr int kWhole = -1;  // instead of a slice: all of them

  struct Piece {
    int chunk;
    int slice;
    Range range;
  };
  // The place of a piece's value.
  struct Value {
    Place::Where where = Place::kInput;
    int slot = -1;      // of the scratch
    int batch = kNone;  // that stored it
  };
  struct Slot {
    int batch = kNone;  // the last that used it
    int group = kNone;  // the last that sent from it
  };
  // A transfer, and its number among those of the same two ranks.
  struct Numbered {
    PieceTransfer transfer;
    int number;
  };
  // The pieces in `slots` are added to the own one.
  struct Addition {
    const Action* action;
    Piece piece;
    std::vector<int> slots;
  };
  // The data received in `slot` are copied to the output.
  struct Aside {
    Piece piece;
    int slot;
  };
  // The own piece is multiplied, into `slot`.
  struct Scaling {
    Piece piece;
    int slot;
  };

  void add_send(const Action& action, const Piece& piece);
  void add_recv(const Action& action, const Piece& piece);
  void add_sum(const Action& action, const Piece& piece);
  void add_copy(const Action& action, const Piece& piece);
  void in_order_of_numbers(std::vector<Numbered>& found);
  void enqueue(const Addition& sum);
  void enqueue(const Aside& aside);
  void enqueue(const Scaling& scaling);

  void begin_reduction();
  void await_group(int group, Wait why);
  void await_batch(int batch, Wait why);
  void end_batch();

  Piece piece_of(const Action& action, int step, int slice) const;
  Value& value_of(const Piece& piece);
  void store(const Piece& piece, const Value& value);
  Place place(const Piece& piece, const Value& value) const;
  Place scratch(const Piece& piece, int slot) const;
  int take_slot();

  StreamId communication() const { return {channel_, StreamId::kCommunication}; }
  StreamId reduction() const { return {channel_, StreamId::kReduction}; }
  StreamId stream_of_sums() const { return work_.overlaps ? reduction() : communication(); }
  EventId communicated() const { return {EventId::kCommunicated, channel_}; }
  EventId reduced(int batch) const;
  int this_batch() const { return work_.overlaps ? num_batches_ : kNone; }

  const Work& work_;
  const int channel_;
  Schedule& schedule_;

  std::vector<Value> values_;   // [chunk][slice]
  std::vector<Value> wholes_;   // [chunk]: the same for all its slices together
  std::vector<Slot> slots_;     // of the scratch
  std::deque<int> free_slots_;  // the one longest unused first

  int num_batches_ = 0, num_groups_ = 0;
  int awaited_batch_ = kNone;     // the last that the communication stream waits for
  int awaited_group_ = kNone;     // the last that the reduction stream waits for
  bool reduction_began_ = false;  // it has waited for something of this call

  // The members below describe the tick that look_at() looked at.
  std::vector<PieceTransfer> transfers_;
  std::vector<Numbered> found_;  // of one step, in one direction
  std::vector<Scaling> scalings_;
  std::vector<Addition> sums_;
  std::vector<Aside> asides_;
  std::vector<int> sent_slots_;
  std::vector<int> passed_slots_;  // not needed after this tick's messages
  int batch_before_send_ = kNone;
  int batch_before_recv_ = kNone;
};

}  // namespace ringcomm::streams
