#include "plan/compose.h"

#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>

namespace ringcomm {

Plan then(Plan first, Plan second) {
  if (first.num_chunks != second.num_chunks) {
    throw std::invalid_argument("a plan of " + std::to_string(first.num_chunks) +
                                " chunks cannot be followed by one of " +
                                std::to_string(second.num_chunks));
  }
  first.steps.insert(first.steps.end(), std::make_move_iterator(second.steps.begin()),
                     std::make_move_iterator(second.steps.end()));
  return first;
}

}  // namespace ringcomm
