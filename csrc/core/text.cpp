#include "core/text.h"

namespace ringcomm {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

unsigned char byte_at(std::string_view text, std::size_t i) {
  return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;  // which continues nothing
}

bool continues(unsigned char byte) { return (byte & 0xc0) == 0x80; }

// Bytes of the character that begins with this one; 0 if none does.
std::size_t length_by(unsigned char first) {
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  return first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

// What is at the beginning of a text: a character, or bytes that are none.
struct Front {
  std::size_t nbytes;
  bool is_character;
};

// The second byte's range leaves out longer forms of other characters, surrogates, and what is
// beyond U+10FFFF.
Front front_of(std::string_view text) {
  const unsigned char first = byte_at(text, 0);
  const std::size_t length = length_by(first);
  if (length == 0) return {1, false};
  unsigned char least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  unsigned char most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  for (std::size_t i = 1; i < length; ++i) {
    const unsigned char byte = byte_at(text, i);
    if (byte < least || byte > most) return {i, false};
    least = 0x80;
    most = 0xbf;
  }
  return {length, true};
}

// U+0000 to U+001F, and U+007F to U+009F.
bool is_control(std::string_view character) {
  const unsigned char first = byte_at(character, 0);
  return first < 0x20 || first == 0x7f || (first == 0xc2 && byte_at(character, 1) < 0xa0);
}

std::string read(std::string_view text, bool is_for_terminals) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const auto [nbytes, is_character] = front_of(text);
    const std::string_view front = text.substr(0, nbytes);
    if (!is_character) {
      result += kReplacement;
    } else if (is_for_terminals && is_control(front)) {
      result += '?';
    } else {
      result += front;
    }
    text.remove_prefix(nbytes);
  }
  return result;
}

}  // namespace

std::string_view cut_at_character(std::string_view text, std::size_t nbytes) {
  if (text.size() <= nbytes) return text;
  for (std::size_t back = 1; back <= std::min<std::size_t>(nbytes, 3); ++back) {
    const unsigned char byte = byte_at(text, nbytes - back);
    if (continues(byte)) continue;
    return text.substr(0, length_by(byte) > back ? nbytes - back : nbytes);
  }
  return text.substr(0, nbytes);
}

std::string valid_utf8(std::string_view text) { return read(text, /*is_for_terminals=*/false); }

std::string printable_utf8(std::string_view text) { return read(text, /*is_for_terminals=*/true); }

}  // namespace ringcomm
