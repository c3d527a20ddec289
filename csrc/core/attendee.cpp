#include "core/attendee.h"

#include "core/text_stream.h"

namespace ringcomm {
namespace {

const std::string kTag = "ringcomm-ticket-3";

}  // namespace

bool Attendee::lives(const Attendee& onlooker) const {
  if (boot != onlooker.boot) return true;
  if (process.runs()) return was_seen = true;
  return !was_seen && host != onlooker.host;
}

std::string Attendee::text() const {
  TextWriter text;
  text << kTag << '\n'
       << ticket << '\n'
       << rank << '\n'
       << world_size << '\n'
       << members << '\n'
       << process.pid << '\n'
       << process.start_time << '\n'
       << process.pid_namespace << '\n'
       << boot << '\n'
       << is_host_given << '\n'
       << host.size() << '\n'
       << refusal.size() << '\n'
       << host << '\n'
       << refusal << '\n';
  return text.str();
}

std::optional<Attendee> Attendee::read(const std::string& text, std::string* rest) {
  TextReader stream(text);
  std::string tag;
  Attendee a;
  std::size_t length = 0, refusal_length = 0;
  stream >> tag >> a.ticket >> a.rank >> a.world_size >> a.members >> a.process.pid >>
      a.process.start_time >> a.process.pid_namespace >> a.boot >> a.is_host_given >> length >>
      refusal_length;
  if (!stream || tag != kTag || stream.get() != '\n') return std::nullopt;
  const auto at = static_cast<std::size_t>(stream.tellg());
  const std::size_t room = text.size() - at;
  if (length >= room || refusal_length + 1 >= room - length) return std::nullopt;
  a.host = text.substr(at, length);
  a.refusal = text.substr(at + length + 1, refusal_length);
  if (rest != nullptr) *rest = text.substr(at + length + 1 + refusal_length + 1);
  return a;
}

}  // namespace ringcomm
