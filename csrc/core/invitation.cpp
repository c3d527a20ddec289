#include "core/invitation.h"

namespace ringcomm {

std::string describe(const Invitation& invitation) {
  return (invitation.members.group.empty() ? std::string("a group")
                                           : "the group \"" + invitation.members.group + "\"") +
         " of " + std::to_string(invitation.world_size) + " ranks";
}

}  // namespace ringcomm
