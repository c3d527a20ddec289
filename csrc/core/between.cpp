#include "core/between.h"

#include <array>
#include <charconv>

#include "core/text_stream.h"

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
  return text_of(across.latency) + " " + text_of(across.overhead) + " " +
         text_of(across.bandwidth) + " " + std::to_string(silence.count()) + " " + engine;
}

Between Between::read(const std::string& line) {
  TextReader words(line);
  std::string latency, overhead, bandwidth;
  Between between;
  std::chrono::milliseconds::rep silence = 0;
  words >> latency >> overhead >> bandwidth >> silence >> between.engine;
  between.across = {value_of(latency), value_of(overhead), value_of(bandwidth)};
  between.silence = std::chrono::milliseconds(silence);
  return between;
}

}  // namespace ringcomm
