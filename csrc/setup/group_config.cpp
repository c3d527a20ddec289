#include "setup/group_config.h"

#include <array>
#include <charconv>

#include "setup/record.h"

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

std::string InterHostConfig::text() const {
  RecordWriter record;
  record << text_of(link.latency) << text_of(link.overhead) << text_of(link.bandwidth)
         << heartbeat_timeout.count() << engine;
  return record.text();
}

std::optional<InterHostConfig> InterHostConfig::read(std::string_view text) {
  RecordReader record(text);
  std::string latency, overhead, bandwidth;
  InterHostConfig inter_host;
  std::chrono::milliseconds::rep heartbeat_timeout = 0;
  record >> latency >> overhead >> bandwidth >> heartbeat_timeout >> inter_host.engine;
  if (!record) return std::nullopt;
  inter_host.link = {value_of(latency), value_of(overhead), value_of(bandwidth)};
  inter_host.heartbeat_timeout = std::chrono::milliseconds(heartbeat_timeout);
  return inter_host;
}

std::string describe(const GroupConfig& config) {
  return (config.members.group.empty() ? std::string("a group")
                                       : "the group \"" + config.members.group + "\"") +
         " of " + std::to_string(config.world_size) + " ranks";
}

}  // namespace ringcomm
