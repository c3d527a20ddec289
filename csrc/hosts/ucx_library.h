// UCX as a library of this process, if there is one: it is loaded when it is first needed, so that
// ringcomm runs without it, too.
#pragma once

#include <string>

#include "hosts/ucp.h"

namespace ringcomm::links {

struct UcxLibrary : ucp::Calls {
  std::string version;    // "1.22"
  ucp::Context* context;  // of the whole process, for good
};

// The first call loads it. Throws Error (kLibrary): why there is none, or what is wrong with it.
const UcxLibrary& ucx_library();

}  // namespace ringcomm::links
