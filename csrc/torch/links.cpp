#include "torch/links.h"

#include "core/status.h"
#include "hosts/ucx_library.h"
#include "setup/store.h"

namespace ringcomm {
namespace {

// How long to wait for a store, which may live on a host that was cut off. Closing the engine waits
// for it, too.
constexpr std::chrono::seconds kPatience{10};

bool uses_ucx(const std::string& wanted) {
  if (wanted == "gloo") return false;
  const std::string missing = links::missing_for_ucx();
  if (wanted == "ucx" && !missing.empty()) {
    throw Error(ErrorKind::kLibrary, "UCX is to carry bytes between hosts, but " + missing);
  }
  return missing.empty();
}

}  // namespace

std::unique_ptr<links::Engine> make_engine(const std::string& wanted, std::shared_ptr<Store> store,
                                           int rank, int world_size) {
  return uses_ucx(wanted)
             ? links::make_ucx_engine(std::move(store), rank, world_size)
             : make_gloo_engine(std::make_shared<PatientStore>(std::move(store), kPatience), rank,
                                world_size);
}

std::vector<std::string> engines_for(const std::string& wanted) {
  if (!uses_ucx(wanted)) return {"gloo"};
  if (wanted == "ucx") return {"ucx"};
  return {"ucx", "gloo"};
}

const std::string& agreed(const std::string& engine, const std::string& wanted) {
  if (wanted == "auto" || wanted == engine) return engine;
  throw Error(ErrorKind::kMismatch, "the hosts of the group have agreed on " + engine +
                                        " between them, and RINGCOMM_LINKS is '" + wanted +
                                        "' on this rank: it is to be the same on all of a host");
}

std::string describe_links(const std::string& wanted) {
  if (uses_ucx(wanted)) return "ucx " + links::ucx_version();
  return wanted == "gloo" ? "gloo" : "gloo, as " + links::missing_for_ucx();
}

}  // namespace ringcomm
