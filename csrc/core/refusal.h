// An error that one rank writes in the store and others throw.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/status.h"

namespace ringcomm {

std::string write_refusal(const Error& error);

// Nothing if it is another text.
std::optional<Error> read_refusal(std::string_view text);

}  // namespace ringcomm
