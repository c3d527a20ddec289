// The engine of gloo, which is in every build of torch: a connection per peer, made when it is
// first needed.
#pragma once

#include <memory>
#include <string>

#include "core/store.h"
#include "links/engine.h"

namespace ringcomm {

// Takes the GIL. Throws Error (kLibrary) where torch was built without gloo, or cannot use it.
std::unique_ptr<links::Engine> make_gloo_engine(std::shared_ptr<Store> store, int rank,
                                                int world_size);

}  // namespace ringcomm
