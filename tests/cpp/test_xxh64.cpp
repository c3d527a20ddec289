// XXH64 against values of its author's, and in pieces. Python's own implementation is in
// tests/test_digests.py.
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "check.h"
#include "core/xxh64.h"

namespace {

using namespace ringcomm;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(values_of_its_author) {
  Xxh64 hash;
  CHECK_EQ(hash.value(), 0xEF46DB3751D8E999u);
  hash.add(bytes_of("a"));
  CHECK_EQ(hash.value(), 0xD24EC4F1A98C6E5Bu);
  hash.add(bytes_of("bc"));
  CHECK_EQ(hash.value(), 0x44BC2CF5AD770999u);
  Xxh64 longer;
  longer.add(bytes_of("Nobody inspects the spammish repetition"));
  CHECK_EQ(longer.value(), 0xFBCEA83C8A378BF1u);
}

TEST(pieces_have_the_hash_of_the_whole) {
  std::vector<std::byte> bytes(200);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i + i / 7);
  const std::span<const std::byte> whole = bytes;
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    Xxh64 at_once;
    at_once.add(whole.first(length));
    for (const std::size_t piece : {1, 3, 8, 31, 32, 33, 64}) {
      Xxh64 in_pieces;
      for (std::size_t at = 0; at < length; at += piece) {
        in_pieces.add(whole.subspan(at, std::min(piece, length - at)));
      }
      CHECK_EQ(in_pieces.value(), at_once.value());
    }
  }
}

}  // namespace
