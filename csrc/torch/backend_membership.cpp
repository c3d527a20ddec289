// Smaller groups: splitting one, and going on without the dead.
#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "setup/store.h"
#include "torch/backend_setup.h"
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
  Shrunk made;
  shm::ShrinkCall call{{}, exact, timeout.value_or(options_->timeout)};
  const auto patience = store_patience(call.timeout);
  std::optional<PatientStore> old_meeting;
  shm::MakeGroup make;
  const auto prepare = [&] {
    call.excluded = members_to_exclude(excluded);
    make = [&](const auto& survivors, const auto& watch) {
      made.backend = successor(survivors, opts, call.timeout, watch);
    };
    check_store_answers(store_, patience);
    old_meeting.emplace(std::make_shared<C10dStore>(met_in_), patience);
  };
  const auto run = [&] {
    if (const std::exception_ptr error = error_of(prepare)) {
      at_the_end([&] {
        PatientStore meeting(std::make_shared<C10dStore>(met_in_), patience);
        shm::decline_to_shrink(communicator_->group(), meeting, call, error);
      });
      std::rethrow_exception(error);
    }
    made.survivors = shm::shrink(communicator_->group(), *old_meeting, call, make);
  };
  with_torch_errors([&] { without_gil(std::ref(run)); });  // without an allocation
  // The new group is there: nothing may keep this rank from it.
  const auto close_for = [&](const std::string& reason) {
    close(reason, /*abort=*/true);
    close(reason, /*abort=*/false);
  };
  at_the_end([&] {
    close_for("the group was shrunk to " +
              communicator_->group().members.names(made.survivors.ranks) + "; use the new group");
  });
  return made;
}

std::vector<int> RingBackend::members_to_exclude(const std::vector<int64_t>& excluded) const {
  std::vector<int> ranks(excluded.begin(), excluded.end());
  std::sort(ranks.begin(), ranks.end());
  for (const int r : ranks) {
    TORCH_CHECK_VALUE(r >= 0 && r < size_, "ring: shrink: rank ", r, " is to be excluded, but the ",
                      "group has ranks 0 to ", size_ - 1);
    TORCH_CHECK_VALUE(r != rank_, "ring: shrink: rank ", r, " is to be excluded, and calls it; ",
                      "only the ranks that stay do");
  }
  return ranks;
}

// The backend of the group that the survivors make, which this rank is one of.
c10::intrusive_ptr<RingBackend> RingBackend::successor(
    const shm::Survivors& survivors, const c10::intrusive_ptr<c10d::Backend::Options>& opts,
    std::chrono::milliseconds timeout, const std::function<void()>& watch) const {
  const std::vector<int>& ranks = survivors.ranks;
  const auto at = std::lower_bound(ranks.begin(), ranks.end(), rank_) - ranks.begin();
  const int rank = static_cast<int>(at);
  const int world_size = static_cast<int>(ranks.size());
  auto options = options_of(ranks, opts);
  if (options_->global_ranks_in_group.empty()) options->global_ranks_in_group.clear();
  options->relative.reset();  // this group, which is gone once a rank aborts it
  const c10::intrusive_ptr<c10d::Store> store =
      c10::make_intrusive<c10d::PrefixStore>("shrunk " + survivors.key, store_);
  WatchedStore meeting(store, store_patience(timeout), watch);
  GroupConfig config = group_config(rank, world_size, *options);
  config.timeout = timeout;
  auto communicator = make_communicator(meeting, config, store, *options);
  return c10::make_intrusive<RingBackend>(store, rank, world_size, std::move(communicator),
                                          std::move(options));
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
