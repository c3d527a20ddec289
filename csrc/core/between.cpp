#include "core/between.h"

#include <array>
#include <charconv>

#include "core/record.h"

namespace ringcomm {
namespace {

// With all digits, and infinity, too.
std::string text_of(double value) {
  std::array<char, 64> digits;
  return {digits.data(), std::to_chars(digits.begin(), digits.end(), value).ptr};
}

double value_of(const std::string& text) {
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

std::string Between::text() const {
  RecordWriter record;
  record << text_of(across.latency) << text_of(across.overhead) << text_of(across.bandwidth)
         << silence.count() << engine;
  return record.text();
}

std::optional<Between> Between::read(std::string_view text) {
  RecordReader record(text);
  std::string latency, overhead, bandwidth;
  Between between;
  std::chrono::milliseconds::rep silence = 0;
  record >> latency >> overhead >> bandwidth >> silence >> between.engine;
  if (!record) return std::nullopt;
  between.across = {value_of(latency), value_of(overhead), value_of(bandwidth)};
  between.silence = std::chrono::milliseconds(silence);
  return between;
}

}  // namespace ringcomm
