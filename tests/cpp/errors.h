// Checks of what is thrown, and of texts.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "core/status.h"

namespace check {

bool contains(std::string_view text, std::string_view part);
void check_contains(const char* file, int line, std::string_view text, std::string_view part);

// What `body` throws, as text; its Error must be of this kind.
std::string error_of(ringcomm::ErrorKind kind, const std::function<void()>& body);

// That `body` throws an Error of this kind, whose text has all the parts.
using Parts = std::vector<std::string_view>;
void check_error(ringcomm::ErrorKind kind, const Parts& parts, const std::function<void()>& body);

}  // namespace check

#define CHECK_CONTAINS(text, part) check::check_contains(__FILE__, __LINE__, (text), (part))
