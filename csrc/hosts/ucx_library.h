// UCX as a library of this process, if there is one: it is loaded when it is first needed, so that
// ringcomm runs without it, too.
#pragma once

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

// ---- The engine: TCP, and what a host has for more speed, such as InfiniBand --------------------

// Where its libraries are, such as the folder lib/ of its wheel; empty, as at first: the system's.
// Says nothing any more once it is loaded.
void look_for_ucx_in(const std::string& place);

// Why there is none; empty if there is. This loads it.
std::string missing_for_ucx();

// "1.22". Throws Error (kLibrary) if there is none.
std::string ucx_version();

// Throws Error (kLibrary) if there is none.
std::unique_ptr<Engine> make_ucx_engine(std::shared_ptr<Store> store, int rank, int world_size);

}  // namespace ringcomm::links
