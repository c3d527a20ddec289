// The engine of UCX: TCP, and what a host has for more speed, such as InfiniBand.
#pragma once

#include <string>

#include "hosts/engine.h"
#include "setup/store.h"

namespace ringcomm::links {

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
