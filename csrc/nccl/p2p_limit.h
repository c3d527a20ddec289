// What the user's variables for NCCL allow GPUs to do with each other's memory. Fused kernels need
// it as much as NCCL's transport between GPUs of one host, and it is switched off for the same
// reasons.
#pragma once

#include <string>

namespace ringcomm::nccl {

struct P2pLimit {
  enum class Kind { kNone, kNvlinkOnly, kForbidden };
  Kind kind = Kind::kNone;
  std::string variable;  // "NCCL_P2P_LEVEL=NVL"; empty for kNone
};

// From NCCL_P2P_DISABLE and NCCL_P2P_LEVEL. Levels that allow some paths over PCI Express count as
// NVL: which path two GPUs have there is not looked for.
P2pLimit p2p_limit();

}  // namespace ringcomm::nccl
