// Text of fixed size: cut between characters, and valid UTF-8 whatever is read. The reference knows
// the encodings of all characters, one by one, and no rule about bytes.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include "check.h"
#include "core/flight_recorder.h"
#include "core/status.h"
#include "core/text.h"

namespace {

using namespace ringcomm;
using Random = std::mt19937_64;

const std::string kReplacement = "\xef\xbf\xbd";

constexpr std::uint32_t kLast = 0x10ffff;
bool is_surrogate(std::uint32_t code) { return code >= 0xd800 && code < 0xe000; }

std::string encoded(std::uint32_t code) {
  const auto byte = [](std::uint32_t value) { return static_cast<char>(value); };
  if (code < 0x80) return {byte(code)};
  if (code < 0x800) return {byte(0xc0 + code / 64), byte(0x80 + code % 64)};
  if (code < 0x10000) {
    return {byte(0xe0 + code / 4096), byte(0x80 + code / 64 % 64), byte(0x80 + code % 64)};
  }
  return {byte(0xf0 + code / 262144), byte(0x80 + code / 4096 % 64), byte(0x80 + code / 64 % 64),
          byte(0x80 + code % 64)};
}

// At most four bytes, and how many they are.
std::uint64_t number_of(std::string_view bytes) {
  std::uint64_t number = bytes.size();
  for (const char byte : bytes) number = number << 8 | static_cast<unsigned char>(byte);
  return number;
}

// Bytes that are all of a character, and bytes that are a beginning of one.
class Encodings {
 public:
  Encodings() {
    for (std::uint32_t code = 0; code <= kLast; ++code) {
      if (is_surrogate(code)) continue;
      const std::string bytes = encoded(code);
      for (std::size_t i = 1; i < bytes.size(); ++i) {
        beginnings_.insert(number_of(bytes.substr(0, i)));
      }
      characters_.push_back(number_of(bytes));
    }
    std::ranges::sort(characters_);
  }

  bool is_character(std::string_view bytes) const {
    return bytes.size() <= 4 && std::ranges::binary_search(characters_, number_of(bytes));
  }
  bool is_beginning(std::string_view bytes) const {
    return bytes.size() <= 4 && beginnings_.contains(number_of(bytes));
  }

 private:
  std::vector<std::uint64_t> characters_;
  std::unordered_set<std::uint64_t> beginnings_;
};
const Encodings& encodings() {
  static const auto all = std::make_unique<Encodings>();
  return *all;
}

// What a reader of the standard's makes of the bytes: characters, and "" for what is none.
std::vector<std::string> reference(const std::string& text) {
  std::vector<std::string> read;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t length = 1;
    const auto goes_on = [&] {
      const std::string longer = text.substr(at, length + 1);
      return longer.size() > length &&
             (encodings().is_beginning(longer) || encodings().is_character(longer));
    };
    while (goes_on()) ++length;
    const std::string bytes = text.substr(at, length);
    read.push_back(encodings().is_character(bytes) ? bytes : "");
    at += length;
  }
  return read;
}

std::string joined(const std::vector<std::string>& characters, bool printable) {
  std::unordered_set<std::string> controls;
  for (std::uint32_t code = 0; code < 0x20; ++code) controls.insert(encoded(code));
  for (std::uint32_t code = 0x7f; code < 0xa0; ++code) controls.insert(encoded(code));
  std::string text;
  for (const std::string& character : characters) {
    const bool is_control = printable && controls.contains(character);
    text += is_control ? "?" : character.empty() ? kReplacement : character;
  }
  return text;
}

void check_read(const std::string& bytes) {
  const std::vector<std::string> expected = reference(bytes);
  CHECK_EQ(valid_utf8(bytes), joined(expected, false));
  CHECK_EQ(printable_utf8(bytes), joined(expected, true));
}

// A character of so many bytes that is no control character.
std::string character_of(std::size_t nbytes, Random& random) {
  constexpr std::uint32_t kFirst[] = {0x20, 0xa0, 0x800, 0x10000, kLast + 1};
  for (;;) {
    const std::uint32_t first = kFirst[nbytes - 1], end = kFirst[nbytes];
    const auto code = static_cast<std::uint32_t>(first + random() % (end - first));
    if (!is_surrogate(code) && (code < 0x7f || code >= 0xa0)) return encoded(code);
  }
}

// Characters of at most `nbytes` altogether, of which fewer are left over than the last one has.
std::vector<std::string> characters_for(std::size_t nbytes, Random& random) {
  std::vector<std::string> characters;
  for (std::size_t left = nbytes; left > 0;) {
    characters.push_back(character_of(1 + random() % std::min<std::size_t>(left, 4), random));
    left -= characters.back().size();
  }
  return characters;
}

std::string joined(const std::vector<std::string>& characters) { return joined(characters, false); }

TEST(every_character_is_read_as_it_is) {
  for (std::uint32_t code = 0; code <= kLast; ++code) {
    if (is_surrogate(code)) continue;
    const std::string bytes = encoded(code);
    CHECK_EQ(valid_utf8(bytes), bytes);
    const bool is_control = code < 0x20 || (code >= 0x7f && code < 0xa0);
    CHECK_EQ(printable_utf8(bytes), is_control ? "?" : bytes);
  }
}

TEST(all_bytes_that_begin_a_text_are_read_as_the_standard_says) {
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      const std::string two = {static_cast<char>(a), static_cast<char>(b)};
      check_read(two.substr(0, 1));
      check_read(two);
      if (a < 0xe0) continue;
      for (const char c : {'\x7f', '\x80', '\xbf', '\xc0', '\xff'}) {
        check_read(two + c);
        check_read(two + c + '\xbf');
      }
    }
  }
}

TEST(random_bytes_are_read_as_the_standard_says) {
  Random random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = joined(characters_for(1 + random() % 12, random));
    for (std::size_t damage = random() % 4; damage > 0; --damage) {
      constexpr unsigned char kBytes[] = {0x00, 0x1b, 0x7f, 0x80, 0xbf, 0xc0, 0xc2,
                                          0xe0, 0xed, 0xef, 0xf0, 0xf4, 0xf5, 0xff};
      bytes[random() % bytes.size()] = static_cast<char>(kBytes[random() % std::size(kBytes)]);
    }
    check_read(bytes.substr(random() % bytes.size()));
  }
}

TEST(text_is_cut_between_characters_and_no_earlier_than_it_must_be) {
  Random random(2);
  for (int i = 0; i < 2000; ++i) {
    const std::vector<std::string> characters = characters_for(random() % 40, random);
    const std::string text = joined(characters);
    for (std::size_t nbytes = 0; nbytes <= text.size() + 1; ++nbytes) {
      std::string longest;
      for (const std::string& character : characters) {
        if (longest.size() + character.size() > nbytes) break;
        longest += character;
      }
      CHECK_EQ(std::string(cut_at_character(text, nbytes)), longest);
    }
  }
}

TEST(bytes_that_are_no_text_are_cut_within_the_limit) {
  Random random(3);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes(random() % 20, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % 3 == 0 ? random() : 0x80);
    const std::size_t nbytes = random() % 22;
    const std::string_view cut = cut_at_character(bytes, nbytes);
    CHECK(bytes.starts_with(cut));
    CHECK(cut.size() <= nbytes);
    CHECK(cut.size() + 3 >= std::min(nbytes, bytes.size()));
  }
}

static_assert(std::is_trivially_copyable_v<FixedText<7>> &&
              std::is_standard_layout_v<FixedText<7>>);
static_assert(std::is_trivially_default_constructible_v<FixedText<7>>);
static_assert(sizeof(FixedText<7>) == 7 && alignof(FixedText<7>) == 1);
static_assert(sizeof(FixedText<2048>) == 2048);

// In the middle of a buffer, so that a write beyond the text is seen.
template <std::size_t N>
struct Guarded {
  std::array<char, 8> before;
  FixedText<N> text;
  std::array<char, 8> behind;

  Guarded() {
    before.fill('<');
    behind.fill('>');
    std::memset(static_cast<void*>(&text), 'x', N);
  }
  std::array<char, N> bytes() const {
    std::array<char, N> copy;
    std::memcpy(copy.data(), &text, N);
    return copy;
  }
  void check_guards() const {
    for (const char c : before) CHECK_EQ(c, '<');
    for (const char c : behind) CHECK_EQ(c, '>');
  }
};

template <std::size_t N>
void check_assign() {
  Random random(N);
  for (std::size_t nbytes = N < 8 ? 0 : N - 8; nbytes < N + 8; ++nbytes) {
    for (int i = 0; i < 20; ++i) {
      const std::string text = joined(characters_for(nbytes, random));
      const std::string kept(cut_at_character(text, N - 1));
      Guarded<N> place;
      place.text.assign(text);
      place.check_guards();
      std::array<char, N> expected{};  // zeros to the end
      std::memcpy(expected.data(), kept.data(), kept.size());
      CHECK(place.bytes() == expected);
      CHECK_EQ(place.text.str(), kept);
      CHECK(text.size() >= N || kept == text);
      CHECK(text.size() < N || kept.size() + 4 >= N);
    }
  }
}

TEST(a_fixed_text_keeps_what_fits_and_ends_in_zeros) {
  check_assign<2>();
  check_assign<5>();
  check_assign<16>();
  check_assign<64>();
  check_assign<128>();
  check_assign<256>();
  check_assign<2048>();
}

TEST(texts_that_were_assigned_alike_are_equal) {
  FixedText<16> a, b;
  a.assign("a longer text that is cut");
  a.assign("short");
  b = {};
  CHECK(!(a == b));
  b.assign("short");
  CHECK(a == b);
  a.assign("");
  CHECK_EQ(a.str(), "");
  CHECK(a == FixedText<16>{});
}

// Whatever the bytes: those of a text without an end, too.
TEST(damaged_memory_is_read_as_printable_text) {
  Random random(4);
  for (int i = 0; i < 20'000; ++i) {
    Guarded<12> place;
    std::array<char, 12> bytes;
    for (char& byte : bytes)
      byte = static_cast<char>(random() % 8 != 0 ? random() | 0x80 : random());
    std::memcpy(static_cast<void*>(&place.text), bytes.data(), bytes.size());
    const std::string until_zero(bytes.data(), strnlen(bytes.data(), bytes.size()));
    CHECK_EQ(place.text.str(), joined(reference(until_zero), true));
  }
  Guarded<12> place;
  CHECK_EQ(place.text.str(), "xxxxxxxxxxxx");
}

TEST(an_error_is_valid_text) {
  const Error error(ErrorKind::kSystem, "cannot open caf\xe9/\xf0\x9f\x8f\x96: no\nsuch file");
  CHECK_EQ(std::string(error.what()),
           "cannot open caf" + kReplacement + "/\xf0\x9f\x8f\x96: no\nsuch file");
}

TEST(a_pickle_holds_valid_text) {
  FlightRecorder::Snapshot snapshot;
  snapshot.groups.emplace_back().name = "a\xff";
  const std::string text = "X" + std::string("\4\0\0\0", 4) + "a" + kReplacement;
  CHECK(pickled(snapshot).find(text) != std::string::npos);
}

}  // namespace
