#include "fused_machine.h"

#include <sched.h>

namespace fused_blocks {

Block::Block(const ReductionArguments& reduction_arguments, const Threads& threads,
             int first_thread)
    : threads(threads), first_thread(first_thread), lane(threads.all()), control(threads.control) {
  arguments.set_reduction(reduction_arguments);
}

Machine::Machine(Block& block, const Job& job, CarryOutShare carry_out_share, int lane, int thread,
                 Proof* proof, std::uint64_t seed)
    : block_(block),
      job_(job),
      carry_out_share_(carry_out_share),
      lane_(lane),
      thread_(thread),
      proof_(proof),
      random_(static_cast<std::minstd_rand::result_type>(seed)) {}

void Machine::sync(Why why) {
  delay();
  ++num_barriers_;
  if (orders(why)) proof_->record.arrive(&block_, num_barriers_, self());
  block_.lane.arrive_and_wait();
  if (orders(why)) proof_->record.leave(&block_, num_barriers_, self());
}

// Orders nothing that matters.
bool Machine::any(bool value) {
  if (value) block_.raised.store(true, std::memory_order_relaxed);
  block_.control.arrive_and_wait();
  const bool raised = block_.raised.load(std::memory_order_relaxed);
  block_.control.arrive_and_wait();  // before a thread lowers it
  if (raised) block_.raised.store(false, std::memory_order_relaxed);
  block_.control.arrive_and_wait();  // before a thread raises it again
  return raised;
}

fused::Progress Machine::acquire(fused::Progress& flag, Why why) {
  const auto value = std::atomic_ref(flag).load(std::memory_order_acquire);
  if (orders(why)) proof_->record.acquire(&flag, self());
  return value;
}

void Machine::release(fused::Progress& flag, fused::Progress value) {
  delay();
  if (proof_ != nullptr) proof_->record.release(&flag, self(), proof_->flags_order);
  std::atomic_ref(flag).store(value, std::memory_order_release);
}

bool Machine::aborted(std::uint32_t spins, int peer) {
  if (spins > 3) waits_for().store(peer + 1, std::memory_order_relaxed);
  sched_yield();
  return std::atomic_ref(job_.control->aborted).load(std::memory_order_relaxed) != 0;
}

void Machine::carry_out(const fused::WorkItem& work_item) {
  delay();
  if (proof_ != nullptr) note_accesses(work_item);
  carry_out_share_(
      work_item.arguments, work_item.moves,
      {0, 1, static_cast<std::size_t>(thread_), static_cast<std::size_t>(block_.threads.movers)});
}

// So that threads come to everything in other orders.
void Machine::delay() {
  if (random_() % 16 == 0) sched_yield();
}

// Which thread touches which byte does not matter to the order of blocks and of steps: here each
// touches a share of its own.
void Machine::note_accesses(const fused::WorkItem& work_item) {
  const DeviceArguments& args = work_item.arguments;
  const std::size_t nbytes = args.partition.count * (work_item.moves ? 1 : job_.unit_nbytes);
  const std::size_t begin = nbytes * thread_ / block_.threads.movers;
  const std::size_t end = nbytes * (thread_ + 1) / block_.threads.movers;
  for (int k = 0; k < args.num_inputs; ++k) {
    proof_->record.access(args.inputs[k] + begin, end - begin, false, self(), "data");
  }
  for (int k = 0; k < args.num_outputs; ++k) {
    proof_->record.access(args.outputs[k] + begin, end - begin, true, self(), "data");
  }
}

}  // namespace fused_blocks
