// A thread of the host as gpu/fused/lane.h and gpu/fused/eager.h want the thread of a block.
#pragma once

#include <atomic>
#include <barrier>
#include <cstdint>
#include <random>

#include "fused_blocks.h"
#include "gpu/fused/lane.h"
#include "reduce/partition.h"

namespace fused_blocks {

using namespace ringcomm;
using fused::Job;
using fused::Why;

// How many threads a block has. Eagerly, all are the control.
struct Threads {
  int movers, control;

  int all() const { return movers + control; }
};

// What the threads of a block, which is one lane, share.
struct Block {
  Block(const ReductionArguments& reduction_arguments, const Threads& threads, int first_thread);

  const Threads threads;
  const int first_thread;  // in the proof
  std::barrier<> lane, control;
  std::atomic<bool> raised{false};
  fused::WorkItem orders[fused::kWorkItems];
  DeviceArguments arguments;
};

using CarryOutShare = void (*)(const DeviceArguments&, bool moves, const Worker&);

class Machine {
 public:
  // Movers come first.
  Machine(Block& block, const Job& job, CarryOutShare carry_out_share, int lane, int thread,
          Proof* proof, std::uint64_t seed);

  bool is_mover() const { return thread_ < block_.threads.movers; }
  int thread() const { return thread_ - block_.threads.movers; }
  int num_threads() const { return block_.threads.control; }
  const DeviceArguments& arguments() const { return block_.arguments; }
  fused::WorkItem& work_item(int turn) { return block_.orders[turn % fused::kWorkItems]; }

  bool any(bool value);
  bool all(bool value) { return !any(!value); }

  void sync(Why why);

  fused::Progress acquire(fused::Progress& flag, Why why);
  void release(fused::Progress& flag, fused::Progress value);

  void put(fused::LLPacket* to, const fused::LLPacket& words) {
    std::atomic_ref(to->second).store(words.second, std::memory_order_relaxed);
    delay();  // they may be torn apart
    std::atomic_ref(to->first).store(words.first, std::memory_order_relaxed);
  }
  fused::LLPacket look(fused::LLPacket* at) {
    const fused::Word first = std::atomic_ref(at->first).load(std::memory_order_relaxed);
    return {first, std::atomic_ref(at->second).load(std::memory_order_relaxed)};
  }

  bool aborted(std::uint32_t spins, int peer);
  void waited() { waits_for().store(0, std::memory_order_relaxed); }

  void carry_out(const fused::WorkItem& work_item);

 private:
  int self() const { return block_.first_thread + thread_; }
  bool orders(Why why) const { return proof_ != nullptr && proof_->left_out != why; }
  std::atomic_ref<std::uint32_t> waits_for() {
    return std::atomic_ref(job_.control->waits_for[lane_]);
  }
  void delay();
  void note_accesses(const fused::WorkItem& work_item);

  Block& block_;
  const Job& job_;
  const CarryOutShare carry_out_share_;
  const int lane_, thread_;
  Proof* const proof_;
  std::minstd_rand random_;
  std::uint64_t num_barriers_ = 0;
};

}  // namespace fused_blocks
