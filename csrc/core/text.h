// Text that ranks write to each other: in a fixed number of bytes, as it lies in shared memory and
// in messages between hosts, and in streams.
//
// Text is cut between two characters of UTF-8, never inside one. What is read may have been
// damaged, or may change while it is read: it becomes valid UTF-8, which Python takes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

namespace ringcomm {

// The longest beginning of at most `nbytes` bytes that does not end inside a character.
std::string_view cut_at_character(std::string_view text, std::size_t nbytes);

// The text, with U+FFFD in place of bytes that are no UTF-8: one for each longest beginning of a
// character, as Python's errors="replace" has it.
std::string valid_utf8(std::string_view text);

// The same, with '?' in place of control characters, which would act on a terminal.
std::string printable_utf8(std::string_view text);

// At most N-1 bytes of text, and zeros behind them.
template <std::size_t N>
class FixedText {
 public:
  FixedText() = default;

  void assign(std::string_view text) {
    static_assert(sizeof(FixedText) == N, "its size is part of a layout");
    static_assert(std::is_trivially_copyable_v<FixedText> && std::is_standard_layout_v<FixedText>);
    text = cut_at_character(text, N - 1);
    bytes_.fill('\0');
    std::ranges::copy(text, bytes_.begin());
  }

  // Printable UTF-8, whatever the bytes are: they may lack a terminator.
  std::string str() const {
    const std::array<char, N> copy = bytes_;
    return printable_utf8({copy.data(), strnlen(copy.data(), N)});
  }

  bool operator==(const FixedText&) const = default;

 private:
  std::array<char, N> bytes_;
};

// Streams for what ranks write to each other. They throw where memory is short: those of the
// standard library leave out what they have no memory for, and report nothing.
struct TextWriter : std::ostringstream {
  TextWriter() { exceptions(std::ios::badbit); }
};

struct TextReader : std::istringstream {
  explicit TextReader(const std::string& text) : std::istringstream(text) {
    exceptions(std::ios::badbit);
  }
};

}  // namespace ringcomm
