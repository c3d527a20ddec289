#include "fake_nccl.h"

#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fake_graph.h"
#include "fake_stream.h"

namespace fake {

std::atomic<int> failing_rank{-1};
std::atomic<int> open_comms{0};
std::atomic<int> destroyed_comms{0};
std::atomic<int> waits_for_graphs{0};
std::atomic<int> frees_under_graphs{0};
std::atomic<int> frees_under_threads{0};
std::atomic<int> connecting{0};
std::atomic<int> most_ctas{0};
std::atomic<int> num_edges{0};
std::atomic<int> most_ahead{std::numeric_limits<int>::max()};

namespace {

struct Send {
  const void* data;
  std::size_t nbytes;
  bool taken = false;
};

// What the communicators of one group share.
struct World {
  int size = 0;
  int joined = 0;
  std::map<std::pair<int, int>, std::deque<Send*>> sends;  // by sender and receiver
  std::set<std::tuple<int, int, int>> posted;  // sender, receiver, and which of them came
  std::map<int, std::shared_ptr<World>> children;
};

std::mutex mutex;  // of everything below and in all worlds
std::condition_variable changed;
std::map<std::string, std::shared_ptr<World>> worlds;
int num_ids = 0;

struct Operation {
  bool is_send;
  void* data;
  std::size_t nbytes;
  int peer;
  ncclComm_t comm;
  cudaStream_t stream;
};
thread_local std::vector<Operation> group;
// It holds those that are left behind, too. It is never destroyed, as leaks are looked for at the
// end of the process.
std::set<ncclComm_t>& comms = *new std::set<ncclComm_t>;

}  // namespace
}  // namespace fake

struct ncclComm {
  int rank;
  std::shared_ptr<fake::World> world;
  int num_children = 0;
  bool mismatch = false;
  bool aborted = false;
  bool revoked = false;
  int threads_inside = 0;
  int graphs = 0;
  int ahead = 0;
  std::vector<std::pair<ncclComm_t*, ncclComm_t>> splitting = {};
};

namespace fake {
namespace {

// One group on one stream, hence of one communicator.
void carry_out(const std::vector<Operation>& operations) {
  std::unique_lock lock(mutex);
  const ncclComm_t comm = operations.front().comm;
  auto& queues = comm->world->sends;
  std::deque<Send> sends;
  for (const Operation& op : operations) {
    if (op.is_send) {
      queues[{comm->rank, op.peer}].push_back(&sends.emplace_back(Send{op.data, op.nbytes}));
    }
  }
  changed.notify_all();
  for (const Operation& op : operations) {
    if (op.is_send) continue;
    auto& queue = queues[{op.peer, comm->rank}];
    changed.wait(lock, [&] { return comm->aborted || !queue.empty(); });
    if (comm->aborted) break;
    Send* send = queue.front();
    queue.pop_front();
    if (send->nbytes != op.nbytes) comm->mismatch = true;
    if (op.nbytes > 0) std::memcpy(op.data, send->data, std::min(op.nbytes, send->nbytes));
    send->taken = true;
    changed.notify_all();
  }
  const auto taken = [](const Send& send) { return send.taken; };
  changed.wait(lock,
               [&] { return comm->aborted || std::all_of(sends.begin(), sends.end(), taken); });
  for (const Operation& op : operations) {
    auto& queue = queues[{comm->rank, op.peer}];
    std::erase_if(queue, [&](Send* send) {
      return std::any_of(sends.begin(), sends.end(), [&](Send& own) { return &own == send; });
    });
  }
}

// False: the communicator was given up meanwhile.
bool connect(const std::vector<Operation>& operations) {
  std::unique_lock lock(mutex);
  const ncclComm_t comm = operations.front().comm;
  auto& posted = comm->world->posted;
  std::vector<std::tuple<int, int, int>> awaited;
  for (const Operation& op : operations) {
    const int from = op.is_send ? comm->rank : op.peer, to = op.is_send ? op.peer : comm->rank;
    if (posted.insert({from, to, comm->rank}).second) ++num_edges;
    awaited.push_back({from, to, op.peer});
  }
  changed.notify_all();
  const auto given_up = [&] { return comm->revoked || comm->aborted; };
  const auto have_come = [&] {
    return std::all_of(awaited.begin(), awaited.end(),
                       [&](const auto& edge) { return posted.contains(edge); });
  };
  ++comm->threads_inside;
  ++connecting;
  changed.wait(lock, [&] { return given_up() || have_come(); });
  --connecting;
  --comm->threads_inside;
  return !given_up();
}

// False: the communicator was given up meanwhile.
bool take_turn(ncclComm_t comm) {
  std::unique_lock lock(mutex);
  ++comm->threads_inside;
  changed.wait(lock, [&] { return comm->revoked || comm->aborted || comm->ahead < most_ahead; });
  --comm->threads_inside;
  ++comm->ahead;
  return !comm->revoked && !comm->aborted;
}

ncclResult_t add(const Operation& operation) {
  std::lock_guard lock(mutex);
  if (operation.comm->revoked) return ncclInvalidUsage;
  group.push_back(operation);
  return ncclSuccess;
}

// NCCL goes back to the device that it was called on, and so makes a context there.
void go_back_to_device() {
  int device = 0;
  cudaGetDevice(&device);
  cudaSetDevice(device);
}

// What NCCL does before it frees a communicator. It would wait without end; a test fails instead.
void wait_for_graphs(ncclComm_t comm) {
  std::unique_lock lock(mutex);
  if (comm->revoked) return;
  if (!changed.wait_for(lock, std::chrono::seconds(5), [&] { return comm->graphs == 0; })) {
    ++waits_for_graphs;
  }
}

}  // namespace
}  // namespace fake

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::lock_guard lock(fake::mutex);
  std::memset(id, 0, sizeof(*id));
  std::memcpy(id->internal, &++fake::num_ids, sizeof(int));
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  std::lock_guard lock(fake::mutex);
  fake::most_ctas = std::max(fake::most_ctas.load(), config->maxCTAs);
  auto& world = fake::worlds[std::string(id.internal, sizeof(id.internal))];
  if (!world) world = std::make_shared<fake::World>();
  world->size = size;
  ++world->joined;
  ++fake::open_comms;
  *comm = *fake::comms.insert(new ncclComm{rank, world}).first;
  return ncclInProgress;
}
ncclResult_t ncclCommSplit(ncclComm_t parent, int, int, ncclComm_t* comm, ncclConfig_t*) {
  std::lock_guard lock(fake::mutex);
  auto& world = parent->world->children[parent->num_children++];
  if (!world) world = std::make_shared<fake::World>();
  world->size = parent->world->size;
  ++world->joined;
  ++fake::open_comms;
  parent->splitting.push_back({comm, *fake::comms.insert(new ncclComm{parent->rank, world}).first});
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  std::lock_guard lock(fake::mutex);
  *state = comm->world->joined < comm->world->size ? ncclInProgress : ncclSuccess;
  if (comm->mismatch) *state = ncclInvalidUsage;
  for (const auto& [to, child] : comm->splitting) {
    if (child->world->joined < child->world->size) *state = ncclInProgress;
  }
  if (*state != ncclSuccess) return ncclSuccess;
  for (const auto& [to, child] : std::exchange(comm->splitting, {})) *to = child;
  return ncclSuccess;
}
ncclResult_t ncclCommRevoke(ncclComm_t comm, int) {
  fake::go_back_to_device();
  std::lock_guard lock(fake::mutex);
  comm->revoked = comm->aborted = true;  // what is under way ends
  fake::changed.notify_all();
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  fake::go_back_to_device();
  {
    std::lock_guard lock(fake::mutex);
    comm->aborted = true;
    if (comm->threads_inside > 0) ++fake::frees_under_threads;
    if (comm->revoked && comm->graphs > 0) ++fake::frees_under_graphs;
    for (const auto& [to, child] : comm->splitting) {
      fake::comms.erase(child);
      delete child;
      --fake::open_comms;
    }
  }
  fake::changed.notify_all();
  fake::wait_for_graphs(comm);
  // What is enqueued still looks at the communicator: it goes with the process.
  static std::vector<std::unique_ptr<ncclComm>> aborted;
  std::lock_guard lock(fake::mutex);
  fake::comms.erase(comm);
  aborted.emplace_back(comm);
  --fake::open_comms;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  fake::go_back_to_device();
  fake::wait_for_graphs(comm);
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  std::lock_guard lock(fake::mutex);
  fake::comms.erase(comm);
  delete comm;
  --fake::open_comms;
  ++fake::destroyed_comms;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) { return "a failure that was asked for"; }
const char* ncclGetLastError(ncclComm_t) { return "its details"; }

ncclResult_t ncclGroupStart() {
  fake::group.clear();
  return ncclSuccess;
}
ncclResult_t ncclSend(const void* data, size_t nbytes, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return fake::add({true, const_cast<void*>(data), nbytes, peer, comm, stream});
}
ncclResult_t ncclRecv(void* data, size_t nbytes, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return fake::add({false, data, nbytes, peer, comm, stream});
}
ncclResult_t ncclGroupEnd() {
  fake::go_back_to_device();
  std::map<cudaStream_t, std::vector<fake::Operation>> by_stream;
  for (const fake::Operation& operation : std::exchange(fake::group, {})) {
    int failing = operation.comm->rank;
    if (fake::failing_rank.compare_exchange_strong(failing, -1)) return ncclSystemError;
    by_stream[operation.stream].push_back(operation);
  }
  for (const auto& [stream, operations] : by_stream) {
    if (!fake::connect(operations)) return ncclInternalError;
  }
  for (const auto& [stream, operations] : by_stream) {
    const ncclComm_t comm = operations.front().comm;
    if (!fake::take_turn(comm)) return ncclInternalError;
    if (stream->graph) {
      std::lock_guard lock(fake::mutex);
      ++comm->graphs;
      stream->graph->on_end([comm] {
        std::lock_guard lock(fake::mutex);
        --comm->graphs;
        fake::changed.notify_all();
      });
    }
    stream->enqueue([operations = operations] {
      fake::carry_out(operations);
      std::lock_guard lock(fake::mutex);
      --operations.front().comm->ahead;
      fake::changed.notify_all();
    });
  }
  return ncclSuccess;
}

}  // extern "C"
