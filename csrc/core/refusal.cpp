#include "core/refusal.h"

namespace ringcomm {
namespace {

const std::string kRefused = "refused\n";

}  // namespace

std::string write_refusal(const Error& error) {
  return kRefused + std::to_string(static_cast<int>(error.kind())) + "\n" + error.what();
}

std::optional<Error> read_refusal(const std::string& text) {
  if (!text.starts_with(kRefused)) return std::nullopt;
  std::size_t end = 0;
  const int kind = std::stoi(text.substr(kRefused.size()), &end);
  return Error(static_cast<ErrorKind>(kind), text.substr(kRefused.size() + end + 1));
}

}  // namespace ringcomm
