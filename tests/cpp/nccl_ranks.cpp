#include "nccl_ranks.h"

#include <chrono>
#include <thread>

#include "check.h"
#include "fake_cuda.h"

namespace ranks {

using namespace std::chrono_literals;

void reclaim() { fake::has_room = true; }

std::function<void(const ringcomm::Error&)> on_lost_results = [](const ringcomm::Error&) {};

void synchronize(cudaStream_t stream) {
  ringcomm::nccl::Event event;
  RINGCOMM_CHECK(cudaEventRecord(event.get(), stream));
  while (!event.happened()) std::this_thread::sleep_for(100us);
}

std::string text_of(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "no error";
}

ringcomm::nccl::Options device_options(const std::string& algorithm, int num_channels) {
  return {.selection = ringcomm::Selection::named(algorithm),
          .layout = {.num_channels = num_channels,
                     .slices_in_flight = 4,
                     .slice_nbytes = 16 << 10,
                     .min_slice_nbytes = 512}};
}

ringcomm::DeviceBoard::Settings settings_of(const ringcomm::nccl::Options& options) {
  return {static_cast<std::uint64_t>(options.layout.num_channels), options.layout.slice_nbytes,
          static_cast<std::uint64_t>(options.max_ctas),
          static_cast<std::uint64_t>(options.executor)};
}

DeviceRank::DeviceRank(MemoryStore& store, int rank, int world_size, const std::string& algorithm,
                       int num_channels)
    : DeviceRank(store, rank, world_size, device_options(algorithm, num_channels)) {}

DeviceRank::DeviceRank(MemoryStore& store, int rank, int world_size,
                       const ringcomm::nccl::Options& options)
    : DeviceRank(store, group_config(rank, world_size), options) {}

DeviceRank::DeviceRank(MemoryStore& store, const ringcomm::GroupConfig& config,
                       const ringcomm::nccl::Options& options,
                       const ringcomm::shm::ConnectHosts& connect_hosts)
    : rank(config.rank), group(store, config, connect_hosts) {
  RINGCOMM_CHECK(cudaSetDevice(kDevice));
  device.emplace(group, kDevice, options,
                 ringcomm::nccl::Host{.reclaim = reclaim, .on_lost_results = on_lost_results});
}

DeviceRank::~DeviceRank() = default;

ringcomm::nccl::Enqueued DeviceRank::all_reduce(Timeout timeout) {
  return device->enqueue_behind(user.get(), [&](ringcomm::Collectives& collectives) {
    collectives.all_reduce(data.data(), data.data(), data.size(),
                           {ringcomm::DType::kFloat32, ringcomm::ReduceOp::kSum}, timeout);
  });
}

ringcomm::nccl::Enqueued DeviceRank::broadcast(Timeout timeout) {
  return device->enqueue_behind(user.get(), [&](ringcomm::Collectives& collectives) {
    collectives.broadcast(data.data(), data.size(), ringcomm::DType::kFloat32, 0, timeout);
  });
}

std::shared_ptr<fake::Graph> DeviceRank::captured_all_reduce() {
  std::shared_ptr<fake::Graph> graph = fake::begin_capture(user.get());
  all_reduce().end->make_wait(user.get());
  CHECK(fake::end_capture(graph, user.get()));
  return graph;
}

ringcomm::nccl::Enqueued DeviceRank::exchange(const std::vector<ringcomm::PeerMessage>& messages,
                                              Timeout timeout) {
  return device->exchange(user.get(), messages, timeout, [](std::size_t, cudaStream_t) {});
}

std::string DeviceRank::failure() {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!device->failure()->get() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(1ms);
  }
  return text_of(device->failure()->get());
}

void with_devices(int world_size, const std::string& algorithm, int num_channels,
                  const std::function<void(DeviceRank&)>& body) {
  MemoryStore store;
  on_threads(world_size, [&](int r) {
    DeviceRank rank(store, r, world_size, algorithm, num_channels);
    body(rank);
  });
}

void with_devices(int world_size, const std::function<void(DeviceRank&)>& body) {
  with_devices(world_size, "ring", 1, body);
}

}  // namespace ranks
