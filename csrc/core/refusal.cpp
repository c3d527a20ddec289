#include "core/refusal.h"

#include "core/record.h"

namespace ringcomm {
namespace {

constexpr char kRefused[] = "refused";

}  // namespace

std::string write_refusal(const Error& error) {
  RecordWriter record;
  record << kRefused << static_cast<int>(error.kind()) << error.what();
  return record.text();
}

std::optional<Error> read_refusal(std::string_view text) {
  RecordReader record(text);
  std::string tag, why;
  int kind = -1;
  record >> tag >> kind >> why;
  const bool is_one =
      record && tag == kRefused && kind >= 0 && kind <= static_cast<int>(ErrorKind::kLibrary);
  if (!is_one) return std::nullopt;
  return Error(static_cast<ErrorKind>(kind), why);
}

}  // namespace ringcomm
