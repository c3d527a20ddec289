// Changing a group's members, and growing: torch.distributed._reconfigure.
//
// Members are given by their handles, in the order of their ranks. Each member got its handle from
// its own backend and gave it to the others. The members meet in the store under a key that is made
// of the uuid and all handles. A handle names its process and its host, so that no member waits for
// one of the same host that dies meanwhile.
#include "torch/backend.h"

#ifdef C10D_BACKEND_HAS_RECONFIGURE

#include <algorithm>
#include <random>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "core/digest.h"
#include "core/process.h"
#include "setup/participant.h"
#include "setup/record.h"
#include "torch/backend_setup.h"
#include "torch/errors.h"
#include "torch/python.h"
#include "torch/store_adapter.h"

namespace ringcomm {
namespace {

using Handle = c10d::ReconfigureHandle;

const std::string kHandle = "ring";

std::vector<Handle> in_rank_order(const c10d::ReconfigureOptions& opts) {
  if (const auto* ordered = std::get_if<std::vector<Handle>>(&opts.handles)) return *ordered;
  const auto& any = std::get<std::unordered_set<Handle>>(opts.handles);
  std::vector<Handle> handles(any.begin(), any.end());
  std::sort(handles.begin(), handles.end());
  return handles;
}

Participant attendee_of(const Handle& handle) {
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

}  // namespace

std::string new_handle() {
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
  for (const Handle& handle : handles) members.push_back(attendee_of(handle));
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
      check_store_answers(store_, store_patience(timeout));
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

}  // namespace ringcomm

#endif
