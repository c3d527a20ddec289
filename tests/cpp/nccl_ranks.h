// Ranks as threads, each with a part of the group on a GPU that the host plays.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fake_graph.h"
#include "gpu/nccl/communicator.h"
#include "memory_store.h"
#include "shm/group.h"

namespace ranks {

inline constexpr int kDevice = 1;  // not the one that is current in a new thread

// As torch's allocator, which can give back what it keeps: the device is not full then.
void reclaim();

// What all ranks do when results are lost; nothing at first.
extern std::function<void(const ringcomm::Error&)> on_lost_results;

void synchronize(cudaStream_t stream);

std::string text_of(const std::exception_ptr& error);

ringcomm::nccl::Options device_options(const std::string& algorithm, int num_channels);

// What a rank publishes that says it connects, and does not.
ringcomm::DeviceBoard::Settings settings_of(const ringcomm::nccl::Options& options);

struct DeviceRank {
  DeviceRank(MemoryStore& store, int rank, int world_size, const std::string& algorithm = "ring",
             int num_channels = 1);
  DeviceRank(MemoryStore& store, int rank, int world_size, const ringcomm::nccl::Options& options);
  DeviceRank(MemoryStore& store, const ringcomm::GroupConfig& config,
             const ringcomm::nccl::Options& options,
             const ringcomm::shm::ConnectHosts& connect_hosts = nullptr);
  ~DeviceRank();

  // Reduces `data` in place.
  ringcomm::nccl::Enqueued all_reduce(Timeout timeout = kPatience);

  // From rank 0.
  ringcomm::nccl::Enqueued broadcast(Timeout timeout = kPatience);

  // An all-reduce, captured in a graph of the user's stream.
  std::shared_ptr<fake::Graph> captured_all_reduce();

  ringcomm::nccl::Enqueued exchange(const std::vector<ringcomm::PeerMessage>& messages,
                                    Timeout timeout = kPatience);

  // What the group fails of.
  std::string failure();

  const int rank;
  ringcomm::shm::Group group;
  std::vector<float> data;  // outlives the streams
  ringcomm::nccl::Stream user;
  std::optional<ringcomm::nccl::Communicator> device;
};

void with_devices(int world_size, const std::string& algorithm, int num_channels,
                  const std::function<void(DeviceRank&)>& body);
void with_devices(int world_size, const std::function<void(DeviceRank&)>& body);

}  // namespace ranks
