// Smaller groups: splitting one, and going on without the dead.
#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "core/patient_store.h"
#include "torch/backend_announcing.h"
#include "torch/backend_meeting.h"
#include "torch/errors.h"
#include "torch/python.h"
#include "torch/store_adapter.h"

namespace ringcomm {
namespace {

// Whoever waits in it asks it again and again, and so watches.
class WatchedStore : public PatientStore {
 public:
  WatchedStore(c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds patience,
               const std::function<void()>& watch)
      : PatientStore(std::make_shared<C10dStore>(std::move(store)), patience), watch_(watch) {}

  std::optional<std::string> find(const std::string& key) override {
    watch_();
    return PatientStore::find(key);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    watch_();
    return PatientStore::add(key, amount);
  }

 private:
  const std::function<void()>& watch_;
};

}  // namespace

c10::intrusive_ptr<RingBackend::Options> RingBackend::options_of(
    const std::vector<int>& ranks, const c10::intrusive_ptr<c10d::Backend::Options>& opts) const {
  auto options = c10::make_intrusive<Options>(*options_);
  if (opts) options->timeout = opts->timeout;
  if (opts) options->group_name = opts->group_name;
  options->global_ranks_in_group.clear();
  options->selection.host_of.clear();
  options->relative = communicator_;
  for (int r : ranks) {
    const auto& ours = options_->global_ranks_in_group;
    options->global_ranks_in_group.push_back(
        static_cast<std::size_t>(r) < ours.size() ? ours[r] : static_cast<std::uint64_t>(r));
    const std::vector<int>& host_of = options_->selection.host_of;
    if (!host_of.empty()) options->selection.host_of.push_back(host_of.at(r));
  }
  return options;
}

c10::intrusive_ptr<c10d::Backend> RingBackend::shrink(
    const std::vector<int64_t>& ranks_to_exclude, int shrink_flags,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts_override) {
  if (shrink_flags != 0) abort();  // torch's SHRINK_ABORT: end what is under way first
  return shrink_to_living(ranks_to_exclude, /*exact=*/true, std::nullopt, opts_override).backend;
}

RingBackend::Shrunk RingBackend::shrink_to_living(
    const std::vector<int64_t>& excluded, bool exact,
    std::optional<std::chrono::milliseconds> timeout,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  check_has_members();
  shm::ShrinkCall call{
      {excluded.begin(), excluded.end()}, exact, timeout.value_or(options_->timeout)};
  std::sort(call.excluded.begin(), call.excluded.end());
  for (const int r : call.excluded) {
    TORCH_CHECK_VALUE(r >= 0 && r < size_, "ring: shrink: rank ", r, " is to be excluded, but the ",
                      "group has ranks 0 to ", size_ - 1);
    TORCH_CHECK_VALUE(r != rank_, "ring: shrink: rank ", r, " is to be excluded, and calls it; ",
                      "only the ranks that stay do");
  }
  Shrunk made;
  without_gil([&] {
    with_torch_errors([&] {
      const auto patience = store_patience(call.timeout);
      check_store_answers(store_, patience);
      PatientStore old_meeting(std::make_shared<C10dStore>(met_in_), patience);
      made.survivors = shm::shrink(
          communicator_->group(), old_meeting, call,
          [&](const shm::Survivors& survivors, const std::function<void()>& watch) {
            const std::vector<int>& ranks = survivors.ranks;
            const auto at = std::lower_bound(ranks.begin(), ranks.end(), rank_) - ranks.begin();
            const int rank = static_cast<int>(at);
            const int world_size = static_cast<int>(ranks.size());
            auto options = options_of(ranks, opts);
            if (options_->global_ranks_in_group.empty()) options->global_ranks_in_group.clear();
            options->relative.reset();  // this group, in which who aborts is gone
            const c10::intrusive_ptr<c10d::Store> store =
                c10::make_intrusive<c10d::PrefixStore>("shrunk " + survivors.key, store_);
            WatchedStore meeting(store, patience, watch);
            Invitation invitation = invite(rank, world_size, *options);
            invitation.timeout = call.timeout;
            auto communicator = meet(meeting, invitation, store, *options);
            made.backend = c10::make_intrusive<AnnouncingBackend>(
                store, rank, world_size, std::move(communicator), std::move(options));
          });
    });
  });
  const std::vector<int>& left = made.survivors.ranks;
  const std::string reason = "the group was shrunk to " +
                             communicator_->group().members.names(left) + "; use the new group";
  close(reason, /*abort=*/true);
  close(reason, /*abort=*/false);
  return made;
}

void RingBackend::check_has_members() const {
  TORCH_CHECK(communicator_,
              "ring: this group has no members yet, or could not be given the ones it was to have; "
              "give it some with torch.distributed._reconfigure");
}

c10d::ErrorType RingBackend::getError() {
  if (!communicator_) return c10d::ErrorType::SUCCESS;
  const std::optional<ErrorKind> failure = communicator_->group().failure();
  if (!failure || *failure == ErrorKind::kClosed) return c10d::ErrorType::SUCCESS;
  if (*failure == ErrorKind::kTimeout) return c10d::ErrorType::TIMEOUT;
  return *failure == ErrorKind::kPeerDied ? c10d::ErrorType::REMOTE_ERROR
                                          : c10d::ErrorType::COMM_ERROR;
}

}  // namespace ringcomm
