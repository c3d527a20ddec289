// Writes what Python's pickle reads: numbers, text, tuples of two, lists and dicts of these.
//
//   Pickle pickle;
//   pickle.dict([&] {
//     pickle.text("sizes");
//     pickle.list([&] { pickle.integer(3); });
//   });
//   std::move(pickle).finish()  // what pickle.loads() makes {"sizes": [3]} of
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "core/text.h"

namespace ringcomm {

class Pickle {
 public:
  void none() { out_ += 'N'; }
  void boolean(bool value) { out_ += value ? '\x88' : '\x89'; }
  void integer(std::int64_t value) {
    out_ += "\x8a\x08";
    little_endian(static_cast<std::uint64_t>(value), 8);
  }
  void real(double value) {
    out_ += 'G';
    const auto bits = std::bit_cast<std::uint64_t>(value);
    for (int byte = 7; byte >= 0; --byte) out_ += static_cast<char>(bits >> (8 * byte));
  }
  // Python reads UTF-8 and nothing else.
  void text(std::string_view value) {
    const std::string written = valid_utf8(value);
    out_ += 'X';
    little_endian(written.size(), 4);
    out_ += written;
  }

  // `items` writes what it has: two, any number, keys and values in turn.
  template <typename Items>
  void pair(Items&& items) {
    items();
    out_ += '\x86';
  }
  template <typename Items>
  void list(Items&& items) {
    out_ += "](";
    items();
    out_ += 'e';
  }
  template <typename Items>
  void dict(Items&& items) {
    out_ += "}(";
    items();
    out_ += 'u';
  }

  std::string finish() && {
    out_ += '.';
    return std::move(out_);
  }

 private:
  void little_endian(std::uint64_t value, int num_bytes) {
    for (int byte = 0; byte < num_bytes; ++byte) out_ += static_cast<char>(value >> (8 * byte));
  }

  std::string out_ = "\x80\x02";  // protocol 2
};

}  // namespace ringcomm
