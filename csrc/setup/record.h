// Records: what ranks write to each other in a store. Each field stands behind its length, as in
// "5:hello,", so that it may be empty and hold any bytes.
//
// A record is another process's: whatever stands in it, a reader finds the fields that it asks for,
// or that there are none.
#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "core/status.h"

namespace ringcomm {

class RecordWriter {
 public:
  RecordWriter& operator<<(std::string_view field);
  RecordWriter& operator<<(const char* field) { return *this << std::string_view(field); }
  RecordWriter& operator<<(std::integral auto number) {
    return *this << std::string_view(std::to_string(number));
  }

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

class RecordReader {
 public:
  // What is given must stay.
  explicit RecordReader(std::string_view text) : rest_(text) {}

  // Where a field is missing or is not of that kind, this one and all later ones stay as they are.
  RecordReader& operator>>(std::string& field);
  RecordReader& operator>>(bool& flag);
  template <std::integral Number>
  RecordReader& operator>>(Number& number);

  // All that was asked for was there.
  explicit operator bool() const { return !failed_; }
  bool is_at_end() const { return rest_.empty(); }
  // What stands behind the fields that were read.
  std::string_view rest() const { return rest_; }

 private:
  std::string_view next();

  std::string_view rest_;
  bool failed_ = false;
};

// The number that the text is from its first to its last character. False: it is none, or too
// large.
template <std::integral Number>
bool read_number(std::string_view text, Number& number) {
  Number found{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), found);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  number = found;
  return true;
}

template <std::integral Number>
RecordReader& RecordReader::operator>>(Number& number) {
  const std::string_view field = next();
  if (!failed_ && !read_number(field, number)) failed_ = true;
  return *this;
}

// An error that one rank writes to the store and others throw.
std::string write_refusal(const Error& error);

// Nothing if it is another text.
std::optional<Error> read_refusal(std::string_view text);

}  // namespace ringcomm
