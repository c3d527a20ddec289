// Which ranks a group has: making one, splitting it, going on without the dead, and growing.
//
// torch.distributed._reconfigure gives a group other members by their handles, in the order of
// their ranks. Each member got its handle from its own backend and gave it to the others. The
// members meet in the store under a key that is made of the uuid and all handles. A handle names
// its process and its host, so that no member waits for one of the same host that dies meanwhile.
#include <algorithm>
#include <random>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "core/call.h"
#include "core/process.h"
#include "core/thread.h"
#include "hosts/address.h"
#include "hosts/linked_hosts.h"
#include "setup/bootstrap.h"
#include "setup/host_assignment.h"
#include "setup/record.h"
#include "setup/store.h"
#include "torch/backend.h"
#include "torch/links.h"
#include "torch/python.h"
#include "torch/store_adapter.h"

namespace ringcomm {
namespace {

// A busy store answers late, one that is cut off never. TCP takes as long again as a cut has taken.
constexpr std::chrono::seconds kLeastPatience{5}, kMostPatience{60};

// What a rank brings to the group that these options are for.
GroupConfig group_config(int rank, int world_size, const RingBackend::Options& options) {
  GroupConfig config{
      .rank = rank,
      .world_size = world_size,
      .timeout = options.timeout,
      .members = {.group = options.group_name, .global_ranks = options.global_ranks_in_group},
      .host = options.host,
      .engines = [wanted = options.links] { return engines_for(wanted); },
      .heartbeat_timeout = options.heartbeat_timeout};
  if (const std::shared_ptr<Communicator> relative = options.relative.lock()) {
    config.gone = [relative, members = config.members](int r, std::string* how) {
      const auto in_relative =
          relative->group().members.find(members.global(r), relative->world_size());
      return in_relative && relative->group().gone(*in_relative, how);
    };
  }
  return config;
}

// Blocks until all ranks have come. Where they are on several hosts, they exchange addresses in
// `links_store`, now and later; no other group uses it. Throws Error.
std::shared_ptr<Communicator> make_communicator(Store& store, GroupConfig config,
                                                const c10::intrusive_ptr<c10d::Store>& links_store,
                                                const RingBackend::Options& options) {
  const auto store_of = [&](const std::string& meeting) {
    return std::make_shared<C10dStore>(
        c10::make_intrusive<c10d::PrefixStore>("links " + meeting, links_store));
  };
  const auto make_links = [&](const std::string& engine, const std::string& meeting, int rank,
                              int world_size) {
    return make_engine(agreed(engine, options.links), store_of(meeting), rank, world_size);
  };
  config.decline = [&, rank = config.rank](const std::string& meeting, const std::string& why) {
    links::publish_failure(*store_of(meeting), rank, why);
  };
  return std::make_shared<Communicator>(store, config, options.selection,
                                        hosts::connect(make_links));
}

// How long the store may take for an answer, where the whole call has so much time.
std::chrono::milliseconds store_patience(std::chrono::milliseconds timeout) {
  return std::clamp<std::chrono::milliseconds>(timeout, kLeastPatience, kMostPatience);
}

// Throws Error if the store does not answer in time: it may have lived in a rank that is gone.
void check_store_answers(Store& store) {
  try {
    store.find("answers");
  } catch (const NoThread& error) {  // this says nothing of the store
    throw error.for_good();
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kSystem,
                "the group's store does not answer: it may have lived in a rank that is gone. "
                "Without it the living cannot meet; all ranks must begin anew. Let the store live "
                "in a process that outlives the ranks, such as the one that starts them "
                "(torchrun's store does). The store's error: " +
                    std::string(error.what()));
  }
}

// A rank that waits in this store asks it again and again, and so calls watch().
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

#ifdef C10D_BACKEND_HAS_RECONFIGURE

using Handle = c10d::ReconfigureHandle;

const std::string kHandle = "ring";

std::vector<Handle> in_rank_order(const c10d::ReconfigureOptions& opts) {
  if (const auto* ordered = std::get_if<std::vector<Handle>>(&opts.handles)) return *ordered;
  const auto& any = std::get<std::unordered_set<Handle>>(opts.handles);
  std::vector<Handle> handles(any.begin(), any.end());
  std::sort(handles.begin(), handles.end());
  return handles;
}

Participant participant_of(const Handle& handle) {
  RecordReader record(handle);
  std::string name;
  Participant participant;
  Process& process = participant.process;
  record >> name >> process.pid >> process.start_time >> process.pid_namespace >>
      participant.boot >> participant.host;
  const bool good = record && name == kHandle;
  TORCH_CHECK_VALUE(good, "ring: reconfigure: \"", handle,
                    "\" is not a handle of the backend \"ring\"; each rank gets its own with "
                    "torch.distributed._get_reconfigure_handle()");
  return participant;
}

std::string key_of(std::int64_t uuid, const std::vector<Handle>& handles) {
  Digest digest;
  for (const Handle& handle : handles) {
    for (const char c : handle) digest.add(static_cast<unsigned char>(c));
  }
  return "reconfigured " + std::to_string(uuid) + " " + std::to_string(digest.value());
}

#endif

}  // namespace

std::shared_ptr<Communicator> RingBackend::first_communicator(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
    const Options& options) {
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  if (options.enable_reconfigure) return nullptr;
#endif
  C10dStore adapter(store);
  return with_torch_errors([&] {
    return make_communicator(adapter, group_config(rank, world_size, options), store, options);
  });
}

c10::intrusive_ptr<c10d::Backend> RingBackend::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  const auto it = std::find(ranks.begin(), ranks.end(), rank_);
  if (it == ranks.end()) return nullptr;
  auto options = options_of(ranks, opts);
  std::string members;
  for (int r : ranks) members += std::to_string(r) + ",";
  auto own_store = c10::make_intrusive<c10d::PrefixStore>("split/" + members, store);
  return c10::make_intrusive<RingBackend>(own_store, static_cast<int>(it - ranks.begin()),
                                          static_cast<int>(ranks.size()), std::move(options));
}

c10::intrusive_ptr<c10d::Backend> RingBackend::merge(
    const c10::intrusive_ptr<c10d::Store>& store,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts, const int& rank, const int& size) {
  auto options = c10::make_intrusive<Options>(*options_);
  if (opts) options->timeout = opts->timeout;
  options->group_name = opts ? opts->group_name : "";
  options->global_ranks_in_group.clear();
  if (opts) options->global_ranks_in_group = opts->global_ranks_in_group;
  options->selection.host_of.clear();  // it names the ranks of this group
  options->relative.reset();
  return c10::make_intrusive<RingBackend>(store, rank, size, std::move(options));
}

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
  std::optional<PatientStore> meeting;
  const auto open_meeting = [&]() -> Store& {
    return meeting ? *meeting : meeting.emplace(std::make_shared<C10dStore>(met_in_), patience);
  };
  shm::MakeGroup make;
  const auto prepare = [&] {
    call.excluded = members_to_exclude(excluded);
    make = [&](const auto& survivors, const auto& watch) {
      made.backend = successor(survivors, opts, call.timeout, watch);
    };
    check_store_answers(open_meeting());
  };
  const auto run = [&] {
    if (const std::exception_ptr error = error_of(prepare)) {
      at_the_end(
          [&] { shm::decline_to_shrink(communicator_->group(), open_meeting(), call, error); });
      std::rethrow_exception(error);
    }
    made.survivors = shm::shrink(communicator_->group(), *meeting, call, make);
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

#ifdef C10D_BACKEND_HAS_RECONFIGURE

std::string RingBackend::new_handle() {
  const Process self = Process::self();
  std::random_device random;
  RecordWriter handle;
  handle << kHandle << self.pid << self.start_time << self.pid_namespace << boot_id() << host_name()
         << random() << random();
  return handle.text();
}

RingBackend::WorkPtr RingBackend::reconfigure(const c10d::ReconfigureOptions& opts) {
  TORCH_CHECK_VALUE(options_->enable_reconfigure,
                    "ring: reconfigure: the group was made without enable_reconfigure=True");
  const std::vector<Handle> handles = in_rank_order(opts);
  std::vector<Participant> members;
  for (const Handle& handle : handles) members.push_back(participant_of(handle));
  const auto own = std::find(handles.begin(), handles.end(), handle_);
  TORCH_CHECK_VALUE(own != handles.end(), "ring: reconfigure: this rank's handle is not among the ",
                    handles.size(), " given");
  TORCH_CHECK_VALUE(std::find(own + 1, handles.end(), handle_) == handles.end(),
                    "ring: reconfigure: this rank's handle is given twice");
  TORCH_CHECK(reconfigured_.insert(opts.uuid).second, "ring: reconfigure: the uuid ", opts.uuid,
              " was already used in this group; each call takes a new one");

  const int rank = static_cast<int>(own - handles.begin());
  const int world_size = static_cast<int>(handles.size());
  const auto timeout = opts.timeout.value_or(options_->timeout);
  close("the group was given other members", /*abort=*/false);
  without_gil([&] {
    {
      std::lock_guard lock(device_mutex_);
      device_group_.reset();
    }
    communicator_.reset();
    options_->global_ranks_in_group.clear();
    options_->selection.host_of.clear();
    options_->relative.reset();
    with_torch_errors([&] {
      PatientStore asked(std::make_shared<C10dStore>(store_), store_patience(timeout));
      check_store_answers(asked);
      met_in_ = c10::make_intrusive<c10d::PrefixStore>(key_of(opts.uuid, handles), store_);
      C10dStore meeting(met_in_);
      GroupConfig config = group_config(rank, world_size, *options_);
      config.timeout = timeout;
      config.gone = [&](int r, std::string* how) {
        if (members[r].lives(members[rank])) return false;
        *how = "its process " + std::to_string(members[r].process.pid) + " has ended";
        return true;
      };
      communicator_ = make_communicator(meeting, config, met_in_, *options_);
    });
  });
  rank_ = rank;
  size_ = world_size;
  sequence_ = 0;
  suspended_ = false;
  begin_record();
  auto work = c10::make_intrusive<CollectiveWork>(
      rank_, Operation{c10d::OpType::UNKNOWN, nullptr, {}, {}, {}, timeout}, queue_);
  work->complete(nullptr);
  return work;
}

#endif

}  // namespace ringcomm
