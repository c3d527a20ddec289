// As much of UCX's interface as the engine needs, declared here: so every build can load whatever
// UCX it later finds, and none needs its headers. Later versions of UCX keep it, as masks say which
// fields are set; tests/cpp/test_ucx_layout.cpp compares it with UCX's own headers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringcomm::links::ucp {

struct Config;
struct Context;
struct Worker;
struct Endpoint;
struct Address;

enum class Status : std::int8_t { kOk = 0, kInProgress = 1, kLast = -100 };

// What calls return that may go on: null if they are done, a Status as a pointer if they failed,
// else a request.
inline bool failed(void* returned) {
  return reinterpret_cast<std::uintptr_t>(returned) >=
         static_cast<std::uintptr_t>(static_cast<std::intptr_t>(Status::kLast));
}
inline bool is_request(void* returned) { return returned != nullptr && !failed(returned); }

struct Params {
  static constexpr std::uint64_t kFeatures = 1 << 0, kMtWorkersShared = 1 << 5;  // fields
  static constexpr std::uint64_t kTag = 1 << 0, kWakeup = 1 << 4;                // features
  std::uint64_t field_mask;
  std::uint64_t features;
  std::size_t request_size;
  void* request_init;
  void* request_cleanup;
  std::uint64_t tag_sender_mask;
  int mt_workers_shared;
};

struct WorkerParams {
  static constexpr std::uint64_t kThreadMode = 1 << 0;
  static constexpr int kSerialized = 1;
  std::uint64_t field_mask;
  int thread_mode;
};

struct WorkerAttr {
  static constexpr std::uint64_t kAddress = 1 << 1;
  std::uint64_t field_mask;
  int thread_mode;
  std::uint32_t address_flags;
  Address* address;
  std::size_t address_length;
};

struct EndpointParams {
  static constexpr std::uint64_t kRemoteAddress = 1 << 0, kErrorMode = 1 << 1,
                                 kErrorHandler = 1 << 2;
  static constexpr int kPeer = 1;  // failures of the peer are reported
  std::uint64_t field_mask;
  const Address* address;
  int error_mode;
  struct {
    void (*call)(void* arg, Endpoint* endpoint, Status status);
    void* arg;
  } error_handler;
};

struct TagRecvInfo {
  std::uint64_t sender_tag;
  std::size_t length;
};

struct RequestParam {
  static constexpr std::uint32_t kCallback = 1 << 1, kUserData = 1 << 2, kFlags = 1 << 4,
                                 kRecvInfo = 1 << 7;
  static constexpr std::uint32_t kForce = 1 << 0;  // of ep_close
  std::uint32_t op_attr_mask;
  std::uint32_t flags;
  void* request;
  union {
    void (*send)(void* request, Status status, void* user_data);
    void (*recv)(void* request, Status status, const TagRecvInfo* info, void* user_data);
  } callback;
  std::uint64_t datatype;
  void* user_data;
  void* reply_buffer;
  int memory_type;
  TagRecvInfo* recv_info;
};

// The calls, by their names in UCX without "ucp_".
struct Calls {
  void (*get_version)(unsigned* major, unsigned* minor, unsigned* release);
  Status (*config_read)(const char* prefix, const char* file, Config** config);
  Status (*config_modify)(Config* config, const char* name, const char* value);
  void (*config_release)(Config* config);
  Status (*init_version)(unsigned major, unsigned minor, const Params* params, const Config* config,
                         Context** context);
  Status (*worker_create)(Context* context, const WorkerParams* params, Worker** worker);
  void (*worker_destroy)(Worker* worker);
  Status (*worker_query)(Worker* worker, WorkerAttr* attr);
  void (*worker_release_address)(Worker* worker, Address* address);
  unsigned (*worker_progress)(Worker* worker);
  Status (*worker_get_efd)(Worker* worker, int* fd);
  Status (*worker_arm)(Worker* worker);
  void* (*worker_flush_nbx)(Worker* worker, const RequestParam* param);
  Status (*ep_create)(Worker* worker, const EndpointParams* params, Endpoint** endpoint);
  void* (*ep_close_nbx)(Endpoint* endpoint, const RequestParam* param);
  void* (*tag_send_nbx)(Endpoint* endpoint, const void* buffer, std::size_t count,
                        std::uint64_t tag, const RequestParam* param);
  void* (*tag_recv_nbx)(Worker* worker, void* buffer, std::size_t count, std::uint64_t tag,
                        std::uint64_t tag_mask, const RequestParam* param);
  void (*request_cancel)(Worker* worker, void* request);
  Status (*request_check_status)(void* request);
  void (*request_free)(void* request);
  const char* (*status_string)(Status status);  // of libucs
};

}  // namespace ringcomm::links::ucp
