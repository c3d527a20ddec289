// What making, shrinking and reconfiguring a backend share.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "setup/bootstrap.h"
#include "setup/store.h"
#include "torch/backend.h"

namespace ringcomm {

// What a rank brings to the group that these options are for.
GroupConfig group_config(int rank, int world_size, const RingBackend::Options& options);

// Blocks until all ranks have come. Where they are on several hosts, they exchange addresses in
// `links_store`, now and later; no other group uses it. Throws Error.
std::shared_ptr<Communicator> make_communicator(Store& store, GroupConfig config,
                                                const c10::intrusive_ptr<c10d::Store>& links_store,
                                                const RingBackend::Options& options);

// How long the store may take for an answer, where the whole call has so much time.
std::chrono::milliseconds store_patience(std::chrono::milliseconds timeout);

// Throws Error if the store does not answer in time: it may have lived in a rank that is gone.
void check_store_answers(const c10::intrusive_ptr<c10d::Store>& store,
                         std::chrono::milliseconds patience);

#ifdef C10D_BACKEND_HAS_RECONFIGURE
// Names one backend of this process.
std::string new_handle();
#endif

}  // namespace ringcomm
