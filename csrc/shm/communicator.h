// One rank's view of a group that shares memory. One object per rank and no globals, so several
// ranks can live in one process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/collectives.h"
#include "core/policy.h"
#include "reduce/publish.h"
#include "setup/store.h"
#include "shm/eager.h"
#include "shm/exchange.h"
#include "shm/executor.h"
#include "shm/group.h"
#include "shm/mail.h"
#include "shm/peer_memory.h"
#include "shm/zero_copy.h"

namespace ringcomm {

// A collective goes one of three ways:
//
//   eager      its input fits into the announcement (shm/eager.h)
//   zero copy  its tensors lie where the peers can reach them (shm/zero_copy.h)
//   by plan    the announcement only compares the calls; then the program of the plan runs
//
// Every rank chooses the same way: the choice depends only on counts and on the announcements. If
// counts differ, so do the calls, and the exchange raises that before any data is read. A user's
// plan is carried out however small the input is, and wherever it lies.
class Communicator : public Collectives {
 public:
  // connect_hosts: makes what the group needs of other hosts, if its ranks are on several.
  // What fails on this rank the others raise, too; has_met is for that alone.
  Communicator(Store& store, const GroupConfig& config, const Selection& selection,
               const shm::ConnectHosts& connect_hosts = nullptr, bool has_met = false);
  // Leaves the group.
  ~Communicator() override;

  // The number of the last call that was announced.
  std::uint64_t sequence() const { return exchange_.announced(); }
  shm::Group& group() { return group_; }
  // How its calls go, for the main collectives and two dtypes; ascending for each.
  std::vector<SizeClass> size_classes() const;

  void barrier(Timeout timeout);

  // Runs body(), which makes num_calls calls, and sends an error of this rank alone to all ranks.
  // If the error comes before a call was announced, the others raise it in that call, and the group
  // goes on. If a call has begun, or all are made, the tensors of the ranks differ, and the group
  // is broken. So no later call meets one of another place in the program. Each call does the same
  // by itself; this is for what surrounds calls.
  template <typename Body>
  void settled(int num_calls, Timeout timeout, Body&& body) {
    const std::uint64_t before = exchange_.announced() - (resumes_ ? 1 : 0);
    try {
      body();
    } catch (const shm::NotYet&) {
      throw;
    } catch (...) {
      settle(std::current_exception(), before, num_calls, timeout);
      rethrow_named(std::current_exception());
    }
  }

  // The same for one call, unless it has to wait for more than some microseconds. Then it returns
  // false, and settled() is to run body() again, on any thread, before this rank makes another
  // call.
  template <typename Body>
  bool settled_soon(Timeout timeout, Body&& body) {
    const shm::Exchange::Impatience impatience(exchange_);
    try {
      settled(1, timeout, body);
      return true;
    } catch (const shm::NotYet&) {
      resumes_ = exchange_.is_under_way();
      return false;
    }
  }
  // Whether it is worth a try: whether the other ranks have what they need of such an input as soon
  // as this one has announced its call, and wait on cores of their own.
  bool may_settle_soon(std::size_t nbytes) const {
    return nbytes <= policy().with_call_nbytes() && !group_.shares_cores() && !group_.spans_hosts();
  }

  // This rank's arguments for a collective are wrong. The others, which make that call, raise the
  // reason instead of waiting, and the group goes on. It does not wait itself, except for what the
  // refusal before it still owes: see Exchange.
  void refuse(const std::string& reason, Timeout timeout);
  bool may_refuse() { return exchange_.may_refuse(); }
  // Likewise for a message: its peer raises the reason. Never blocks; any thread. See shm/mail.h.
  void refuse_message(shm::Message::Kind kind, int peer, std::int32_t tag,
                      const std::string& reason, Timeout timeout) {
    mail_.refuse(kind, peer, tag, reason, Deadline::in(timeout));
  }

  // A barrier, behind which this rank gives back the shared memory that holds no state. Later calls
  // make it again. Throws Error (kInvalidArgument), on all ranks, if messages are under way. Not
  // between hosts.
  void give_back(Timeout timeout);

  // A barrier that reports to rank 0 which ranks are missing (all of them, or the first), and then
  // to the others: throws on every rank that came. kTimeout when the time is up; kPeerDied as soon
  // as one of them (with wait_all_ranks: every one) has left or died, and on the others when rank 0
  // has. It does not break the group.
  void monitored_barrier(bool wait_all_ranks, Timeout timeout);

  // Never block; any thread. See shm/mail.h.
  void post(std::shared_ptr<shm::Message> message) { mail_.post(std::move(message)); }
  bool wait(const shm::Message& message, Timeout patience) { return mail_.wait(message, patience); }

  // Leaves the group: pending and later calls raise `reason`.
  void close(const std::string& reason);
  // Pending and later calls raise `reason`, and the group is broken for the other ranks too. The
  // rank can still go on with some of them: shm/shrink.h.
  void abort(const std::string& reason);

 private:
  void close(const std::string& reason, shm::Closed how);
  void settle(const std::exception_ptr& error, std::uint64_t before, int num_calls,
              Timeout timeout) noexcept;
  // With the rank and the call, if it is an error that knows neither.
  [[noreturn]] void rethrow_named(const std::exception_ptr& error);

  static constexpr ExecutorKind kExecutor = ExecutorKind::kShm;
  ExecutorKind executor_kind() const override { return kExecutor; }
  void carry_out(Call call, const Reduction& reduction, Timeout timeout) override;

  void carry_out_here(Call& call, const Reduction& reduction, const Deadline& deadline);
  void eagerly(shm::Eager& eager, shm::ZeroCopy* zero_copy, Call& call, const Reduction& reduction,
               const Deadline& deadline);
  void by_plan(Call& call, const Reduction& reduction, const Deadline& deadline);
  void carry_out_all_to_all(Call& call, const Reduction& reduction, const Deadline& deadline);
  void check_counts(const Call& call);
  void check_sum(const Call& call, std::size_t from, const std::uint64_t* counts,
                 std::uint64_t most);

  // The program of the call, and its fingerprint in it; if that is refused, `refusal`, which is to
  // be thrown once all ranks know of it.
  const Program& program(Call& call, std::exception_ptr& refusal);
  void await_all(const std::exception_ptr& refusal, const Deadline& deadline);

  template <typename T>
  using ByCall = std::map<std::pair<Collective, int>, T>;  // and its root
  // Made when it is first wanted.
  template <typename T>
  T& find(ByCall<T>& ways, const Call& call);
  bool fits(const shm::ZeroCopy& zero_copy, std::size_t before) const {
    return before + zero_copy.most_nbytes() <= group_.geometry().eager_nbytes;
  }
  shm::Eager& eager_way(const Call& call);
  // Null: calls on that path copy wherever their tensors are. `before`: the bytes of the payload
  // before the places that this rank publishes.
  shm::ZeroCopy* zero_copy_way(const Call& call, Path path, std::size_t before = 0);
  std::size_t publish_buffers(shm::ZeroCopy& zero_copy, const Call& call, std::byte* payload) {
    return zero_copy.publish_buffers(blocks(), element_size(call.dtype), peers_, payload);
  }
  shm::ZeroCopy::Announced announced(std::size_t before = 0) {
    return {group_, exchange_, peers_, before};
  }

  struct Joining {
    shm::Group* group;
    ~Joining();
  };

  shm::Group group_;
  Joining joining_;
  shm::Exchange exchange_;
  shm::Executor executor_;
  shm::Mail mail_;
  shm::PeerMemory peers_;
  ByCall<shm::Eager> eager_;
  StoreChoice payload_stores_;
  ByCall<shm::ZeroCopy> zero_copy_;
  std::vector<std::uint64_t> counts_;  // what the ranks announce to an all-to-all
  std::uint64_t barriers_ = 0;
  bool resumes_ = false;  // the next call has been announced
};

}  // namespace ringcomm
