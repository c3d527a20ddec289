// Ranks as threads, each with a part of the group on a GPU that the host plays. To be included by
// one source of a test program.
#pragma once

#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fake_nccl.h"
#include "memory_store.h"
#include "nccl/communicator.h"
#include "one_mapping.h"

namespace ranks {

using namespace std::chrono_literals;

inline constexpr int kDevice = 1;  // not the one that is current in a new thread

inline std::shared_ptr<void> allocate(std::size_t nbytes, cudaStream_t) {
  return {std::malloc(nbytes), std::free};
}

inline void synchronize(cudaStream_t stream) {
  ringcomm::nccl::Event event;
  RINGCOMM_CHECK(cudaEventRecord(event.get(), stream));
  while (!event.happened()) std::this_thread::sleep_for(100us);
}

inline std::string text_of(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "no error";
}

inline ringcomm::nccl::Options device_options(const std::string& algorithm, int num_channels) {
  return {.selection = ringcomm::Selection::named(algorithm),
          .layout = {.num_channels = num_channels,
                     .slices_in_flight = 4,
                     .slice_nbytes = 16 << 10,
                     .min_slice_nbytes = 512}};
}

struct DeviceRank {
  DeviceRank(MemoryStore& store, int rank, int world_size, const std::string& algorithm = "ring",
             int num_channels = 1)
      : DeviceRank(store, rank, world_size, device_options(algorithm, num_channels)) {}
  DeviceRank(MemoryStore& store, int rank, int world_size, const ringcomm::nccl::Options& options)
      : DeviceRank(store, ranks::invite(rank, world_size), options) {}
  DeviceRank(MemoryStore& store, const ringcomm::Invitation& invitation,
             const ringcomm::nccl::Options& options,
             const ringcomm::links::MakeEngine& make_engine = nullptr)
      : rank(invitation.rank), group(store, invitation, make_engine) {
    RINGCOMM_CHECK(cudaSetDevice(kDevice));
    device.emplace(group, kDevice, options, allocate);
  }

  // Of `data`, in place.
  ringcomm::nccl::Enqueued all_reduce(Timeout timeout = kPatience) {
    return device->enqueue_behind(user.get(), [&](ringcomm::Collectives& collectives) {
      collectives.all_reduce(data.data(), data.data(), data.size(),
                             {ringcomm::DType::kFloat32, ringcomm::ReduceOp::kSum}, timeout);
    });
  }

  ringcomm::nccl::Enqueued exchange(const std::vector<ringcomm::PeerMessage>& messages,
                                    Timeout timeout = kPatience) {
    return device->exchange(user.get(), messages, timeout, [](std::size_t, cudaStream_t) {});
  }

  // What the group fails of.
  std::string failure() {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!device->failure()->get() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(1ms);
    }
    return text_of(device->failure()->get());
  }

  const int rank;
  ringcomm::shm::Group group;
  std::vector<float> data;  // outlives the streams
  ringcomm::nccl::Stream user;
  std::optional<ringcomm::nccl::Communicator> device;
};

inline void with_devices(int world_size, const std::string& algorithm, int num_channels,
                         const std::function<void(DeviceRank&)>& body) {
  MemoryStore store;
  on_threads(world_size, [&](int r) {
    DeviceRank rank(store, r, world_size, algorithm, num_channels);
    body(rank);
  });
}

inline void with_devices(int world_size, const std::function<void(DeviceRank&)>& body) {
  with_devices(world_size, "ring", 1, body);
}

}  // namespace ranks
