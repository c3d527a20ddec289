#include "setup/record.h"

namespace ringcomm {

RecordWriter& RecordWriter::operator<<(std::string_view field) {
  text_ += std::to_string(field.size());
  text_ += ':';
  text_ += field;
  text_ += ',';
  return *this;
}

std::string_view RecordReader::next() {
  const std::size_t colon = failed_ ? std::string_view::npos : rest_.find(':');
  std::size_t length = 0;
  failed_ = colon == std::string_view::npos || !read_number(rest_.substr(0, colon), length) ||
            length >= rest_.size() - colon - 1 || rest_[colon + 1 + length] != ',';
  if (failed_) return {};
  const std::string_view field = rest_.substr(colon + 1, length);
  rest_.remove_prefix(colon + 1 + length + 1);
  return field;
}

RecordReader& RecordReader::operator>>(std::string& field) {
  const std::string_view found = next();
  if (!failed_) field = found;
  return *this;
}

RecordReader& RecordReader::operator>>(bool& flag) {
  int number = 0;
  *this >> number;
  if (!failed_ && (number == 0 || number == 1)) {
    flag = number == 1;
  } else {
    failed_ = true;
  }
  return *this;
}

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
