#include "hosts/ucx_library.h"

#include <dlfcn.h>
#include <signal.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include "core/policy.h"
#include "core/process.h"
#include "core/status.h"
#include "hosts/engine.h"

namespace ringcomm::links {
namespace {

// What a host's ranks announce is sent before it is received, as core/policy.h has it.
static_assert(kMostBetweenHosts <= kOneShot);

// The first version that has all the calls and flags; later ones keep them.
constexpr unsigned kMajor = 1, kMinor = 12;

// What UCX shall do unless the user says otherwise.
const std::pair<const char*, std::string> kDefaults[] = {
    // Peers are on other hosts, and what is sent lies in the memory of this one.
    {"TLS", "^sm,self,cuda,rocm,ze,gaudi"},
    // What is longer stays on its sender until it is received.
    {"RNDV_THRESH", std::to_string(kOneShot + 1)},
    // A rank that connects does not wait for the peer's host, which may be cut off.
    {"TCP_CONN_NB", "y"},
    // A host that goes without a word is missed after about seven seconds.
    {"KEEPALIVE_INTERVAL", "3s"},
    {"TCP_KEEPIDLE", "3s"},
    {"TCP_KEEPINTVL", "1s"},
    {"TCP_KEEPCNT", "4"},
    // The engine reports errors itself.
    {"LOG_LEVEL", "fatal"},
};

std::mutex mutex;  // of what follows
std::string folder;

[[noreturn]] void fail(const std::string& what) { throw Error(ErrorKind::kLibrary, what); }

// Versions before 1.14 take over the signals of crashes as they are loaded.
class KeptSignals {
 public:
  KeptSignals() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], nullptr, &actions_[i]);
  }
  ~KeptSignals() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &actions_[i], nullptr);
  }

 private:
  static constexpr std::array kSignals{SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGABRT};
  std::array<struct sigaction, kSignals.size()> actions_;
};

void* open(const std::string& name, int more_flags = 0) {
  return dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | more_flags);
}

// libucp, and what it needs, from one place. Another in this process comes first: two of them
// would both change how memory is freed.
void* load() {
  if (void* loaded = open("libucp.so.0", RTLD_NOLOAD)) return loaded;
  if (folder.empty()) {
    if (void* found = open("libucp.so.0")) return found;
    fail("there is no UCX: its wheel, libucx-cu13 or libucx-cu12, is not installed, and " +
         std::string(dlerror()));
  }
  void* last = nullptr;
  for (const char* name : {"libucs.so.0", "libucm.so.0", "libuct.so.0", "libucp.so.0"}) {
    last = open(folder + "/" + name);
    if (last == nullptr) fail("UCX cannot be loaded: " + std::string(dlerror()));
  }
  return last;
}

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) fail("UCX lacks " + std::string(name));
}

void find_all(void* library, UcxLibrary& ucx) {
  find(library, "ucp_get_version", ucx.get_version);
  find(library, "ucp_config_read", ucx.config_read);
  find(library, "ucp_config_modify", ucx.config_modify);
  find(library, "ucp_config_release", ucx.config_release);
  find(library, "ucp_init_version", ucx.init_version);
  find(library, "ucp_worker_create", ucx.worker_create);
  find(library, "ucp_worker_destroy", ucx.worker_destroy);
  find(library, "ucp_worker_query", ucx.worker_query);
  find(library, "ucp_worker_release_address", ucx.worker_release_address);
  find(library, "ucp_worker_progress", ucx.worker_progress);
  find(library, "ucp_worker_get_efd", ucx.worker_get_efd);
  find(library, "ucp_worker_arm", ucx.worker_arm);
  find(library, "ucp_worker_flush_nbx", ucx.worker_flush_nbx);
  find(library, "ucp_ep_create", ucx.ep_create);
  find(library, "ucp_ep_close_nbx", ucx.ep_close_nbx);
  find(library, "ucp_tag_send_nbx", ucx.tag_send_nbx);
  find(library, "ucp_tag_recv_nbx", ucx.tag_recv_nbx);
  find(library, "ucp_request_cancel", ucx.request_cancel);
  find(library, "ucp_request_check_status", ucx.request_check_status);
  find(library, "ucp_request_free", ucx.request_free);
  find(library, "ucs_status_string", ucx.status_string);
}

void check(const UcxLibrary& ucx, ucp::Status status, const char* call) {
  if (status == ucp::Status::kOk) return;
  fail(describe_failure(ucx, status, call));
}

ucp::Context* make_context(const UcxLibrary& ucx) {
  ucp::Config* config = nullptr;
  check(ucx, ucx.config_read(nullptr, nullptr, &config), "ucp_config_read");
  for (const auto& [name, value] : kDefaults) {
    if (value_of_variable((std::string("UCX_") + name).c_str()) != nullptr) continue;
    ucx.config_modify(config, name, value.c_str());  // an old version need not know all of them
  }
  ucp::Params params{};
  params.field_mask = ucp::Params::kFeatures | ucp::Params::kMtWorkersShared;
  params.features = ucp::Params::kTag | ucp::Params::kWakeup;
  params.mt_workers_shared = 1;  // workers of several threads
  ucp::Context* context = nullptr;
  const ucp::Status status = ucx.init_version(kMajor, kMinor, &params, config, &context);
  ucx.config_release(config);
  check(ucx, status, "ucp_init");
  return context;
}

UcxLibrary make_library() {
  UcxLibrary ucx{};
  const KeptSignals signals;
  find_all(load(), ucx);
  unsigned major = 0, minor = 0, release = 0;
  ucx.get_version(&major, &minor, &release);
  ucx.version = std::to_string(major) + "." + std::to_string(minor);
  if (major != kMajor || minor < kMinor) {
    fail("UCX " + ucx.version + " is too old, or too new: 1.12 or a later 1 is needed");
  }
  ucx.context = make_context(ucx);
  return ucx;
}

}  // namespace

std::string describe_failure(const UcxLibrary& ucx, ucp::Status status, const char* call) {
  return "UCX " + ucx.version + " fails in " + call + ": " + ucx.status_string(status);
}

const UcxLibrary& ucx_library() {
  static std::optional<std::pair<UcxLibrary, ForkGuard>> library;
  std::lock_guard lock(mutex);
  if (!library) library.emplace(make_library(), ForkGuard());
  if (!library->second.is_here()) {
    fail("UCX was loaded before this process was forked, and does not outlive that");
  }
  return library->first;
}

void look_for_ucx_in(const std::string& place) {
  std::lock_guard lock(mutex);
  folder = place;
}

std::string ucx_version() { return ucx_library().version; }

std::string missing_for_ucx() {
  try {
    ucx_library();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace ringcomm::links
