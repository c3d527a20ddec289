#include "nccl/failure.h"

#include <unistd.h>

#include <cstdlib>
#include <string>

namespace ringcomm::nccl {

void end_process(const Error& error) {
  const std::string text =
      "ring: " + std::string(error.what()) +
      "\nring: the process ends, because the results of what was under way on its device are lost, "
      "and it would compute on with what is in their place. RINGCOMM_ASYNC_ERRORS=raise lets it go "
      "on, and later calls raise the error.\n";
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t written = write(STDERR_FILENO, text.data() + at, text.size() - at);
    if (written <= 0) break;
    at += static_cast<std::size_t>(written);
  }
  std::_Exit(EXIT_FAILURE);
}

}  // namespace ringcomm::nccl
