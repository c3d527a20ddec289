#include "core/group_config.h"

namespace ringcomm {

std::string describe(const GroupConfig& config) {
  return (config.members.group.empty() ? std::string("a group")
                                       : "the group \"" + config.members.group + "\"") +
         " of " + std::to_string(config.world_size) + " ranks";
}

}  // namespace ringcomm
