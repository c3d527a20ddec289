// Which engine carries bytes between hosts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hosts/engine.h"
#include "setup/store.h"

namespace ringcomm {

// "auto": UCX if there is one, else gloo; "ucx"; "gloo". The ranks of one group, and of no other,
// exchange addresses in the store. Throws Error (kLibrary) if there is no such engine.
std::unique_ptr<links::Engine> make_engine(const std::string& wanted, std::shared_ptr<Store> store,
                                           int rank, int world_size);

// The engine of gloo, which is in every build of torch: a connection per peer, made when it is
// first needed. Takes the GIL. Throws Error (kLibrary) where torch was built without gloo, or
// cannot use it.
std::unique_ptr<links::Engine> make_gloo_engine(std::shared_ptr<Store> store, int rank,
                                                int world_size);

// What may be agreed on where this is wanted, the best first. Throws as the above. This loads UCX.
std::vector<std::string> engines_for(const std::string& wanted);
// What has been agreed on. Throws Error (kMismatch) if this rank wants another one.
const std::string& agreed(const std::string& engine, const std::string& wanted);

// "ucx 1.22", "gloo, as there is no UCX: ..."; throws as the above. This loads UCX.
std::string describe_links(const std::string& wanted);

}  // namespace ringcomm
