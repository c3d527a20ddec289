#include "nccl/p2p_limit.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "core/environment.h"

namespace ringcomm::nccl {
namespace {

constexpr long kLeastThatAllowsAll = 4;  // of the levels that are numbers

P2pLimit::Kind kind_of_level(std::string_view level) {
  constexpr std::string_view kPartly[] = {"NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB"};
  if (level == "LOC") return P2pLimit::Kind::kForbidden;
  if (std::ranges::find(kPartly, level) != std::end(kPartly)) return P2pLimit::Kind::kNvlinkOnly;
  if (level[0] < '0' || level[0] > '9') return P2pLimit::Kind::kNone;
  const long number = std::strtol(level.data(), nullptr, 0);
  if (number == 0) return P2pLimit::Kind::kForbidden;
  return number < kLeastThatAllowsAll ? P2pLimit::Kind::kNvlinkOnly : P2pLimit::Kind::kNone;
}

}  // namespace

P2pLimit p2p_limit() {
  const char* disable = value_of_variable("NCCL_P2P_DISABLE");
  if (disable != nullptr && std::strtol(disable, nullptr, 0) == 1) {
    return {P2pLimit::Kind::kForbidden, std::string("NCCL_P2P_DISABLE=") + disable};
  }
  const char* level = value_of_variable("NCCL_P2P_LEVEL");
  const P2pLimit::Kind kind = level == nullptr ? P2pLimit::Kind::kNone : kind_of_level(level);
  if (kind == P2pLimit::Kind::kNone) return {};
  return {kind, std::string("NCCL_P2P_LEVEL=") + level};
}

}  // namespace ringcomm::nccl
