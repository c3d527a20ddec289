#include "shm/notice.h"

#include <algorithm>
#include <set>

#include "core/text_stream.h"

namespace ringcomm::shm {

std::string Notice::text() const {
  TextWriter text;
  text << number << ' ' << listens << ' ';
  for (const Known known : ranks) text << static_cast<char>(known);
  for (const auto& [rank, digest] : calls) text << ' ' << rank << ' ' << digest;
  return text.str();
}

std::optional<Notice> Notice::read(const std::string& text, int world_size) {
  TextReader stream(text);
  Notice notice;
  std::string ranks;
  stream >> notice.number >> notice.listens >> ranks;
  if (!stream || ranks.size() != static_cast<std::size_t>(world_size)) return std::nullopt;
  for (const char c : ranks) notice.ranks.push_back(static_cast<Known>(c));
  int rank = 0;
  std::uint64_t digest = 0;
  while (stream >> rank >> digest) notice.calls[rank] = digest;
  return notice;
}

void Notices::take(int host, const Notice& notice) {
  std::optional<Last>& last = last_[host];
  if (!last || last->notice.number != notice.number) last = Last{notice, Clock::now()};
}

std::optional<Clock::time_point> Notices::since(int host) const {
  return last_[host] ? std::optional(last_[host]->since) : std::nullopt;
}

const Notice* Notices::of(int host) const {
  const std::optional<Last>& last = last_[host];
  if (!last || Clock::now() - last->since >= silence_) return nullptr;
  return &last->notice;
}

Known Notices::known(int rank) const {
  const int host = placement_.host_of[rank];
  if (const Notice* own = of(host)) return own->ranks[rank];
  Known known = last_[host] ? Known::kGone : Known::kNothing;
  for (int other = 0; other < placement_.num_hosts(); ++other) {
    const Notice* notice = other == host ? nullptr : of(other);
    if (notice == nullptr || notice->ranks[rank] == Known::kNothing) continue;
    known = notice->ranks[rank];
    if (known == Known::kLives) break;
  }
  return known;
}

// Where a host does not listen, the others do not hear of it for the same reason: its leader is
// gone. That is no cut.
bool Notices::are_cut(int a, int b) const {
  const Notice *of_a = of(a), *of_b = of(b);
  if (of_a == nullptr || of_b == nullptr) return true;
  return of_a->listens && of_b->listens &&
         (of_a->ranks[placement_.leader_of(b)] == Known::kSilent ||
          of_b->ranks[placement_.leader_of(a)] == Known::kSilent);
}

// Each host in turn gathers those that hear all it has gathered.
std::vector<int> Notices::largest_part(const std::vector<int>& ranks) const {
  std::set<int> hosts;
  for (const int rank : ranks) hosts.insert(placement_.host_of[rank]);
  std::vector<int> largest;
  for (const int first : hosts) {
    std::vector<int> gathered = {first};
    for (const int host : hosts) {
      const auto hears = [&](int other) { return !are_cut(host, other); };
      if (host != first && std::ranges::all_of(gathered, hears)) gathered.push_back(host);
    }
    std::vector<int> part;
    std::ranges::copy_if(ranks, std::back_inserter(part), [&](int rank) {
      return std::ranges::find(gathered, placement_.host_of[rank]) != gathered.end();
    });
    if (part.size() > largest.size()) largest = std::move(part);
  }
  return largest;
}

}  // namespace ringcomm::shm
