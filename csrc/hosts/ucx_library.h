// UCX as a library of this process, if there is one: where it is looked for, which version it is,
// and the engine that uses it. It is loaded when it is first needed, so that ringcomm runs without
// it, too.
#pragma once

#include <memory>
#include <string>

#include "hosts/engine.h"
#include "hosts/ucp.h"
#include "setup/store.h"

namespace ringcomm::links {

struct UcxLibrary : ucp::Calls {
  std::string version;    // "1.22"
  ucp::Context* context;  // of the whole process, for good
};

// The first call loads it. Throws Error (kLibrary): why there is none, or what is wrong with it.
const UcxLibrary& ucx_library();

// "UCX 1.22 fails in ucp_worker_create: ..."
std::string describe_failure(const UcxLibrary& ucx, ucp::Status status, const char* call);

// ---- Without UCX's own types -------------------------------------------------------------------

// Where UCX's libraries are, such as the folder lib/ of its wheel; empty, as at first: the
// system's. Says nothing any more once it is loaded.
void look_for_ucx_in(const std::string& place);

// Why there is none; empty if there is. This loads it.
std::string missing_for_ucx();

// "1.22". Throws Error (kLibrary) if there is none.
std::string ucx_version();

// The engine (hosts/ucx_engine.cpp): TCP, and what a host has for more speed, such as InfiniBand.
// Throws Error (kLibrary) if there is no UCX.
std::unique_ptr<Engine> make_ucx_engine(std::shared_ptr<Store> store, int rank, int world_size);

}  // namespace ringcomm::links
