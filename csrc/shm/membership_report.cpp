#include "shm/membership_report.h"

#include <algorithm>
#include <set>

#include "core/text.h"

namespace ringcomm::shm {

std::string MembershipReport::text() const {
  TextWriter text;
  text << number << ' ' << listens << ' ';
  for (const MemberState state_of : ranks) text << static_cast<char>(state_of);
  for (const auto& [rank, digest] : calls) text << ' ' << rank << ' ' << digest;
  return text.str();
}

std::optional<MembershipReport> MembershipReport::read(const std::string& text, int world_size) {
  TextReader stream(text);
  MembershipReport report;
  std::string ranks;
  stream >> report.number >> report.listens >> ranks;
  if (!stream || ranks.size() != static_cast<std::size_t>(world_size)) return std::nullopt;
  for (const char c : ranks) report.ranks.push_back(static_cast<MemberState>(c));
  int rank = 0;
  std::uint64_t digest = 0;
  while (stream >> rank >> digest) report.calls[rank] = digest;
  return report;
}

void MembershipReports::take(int host, const MembershipReport& report) {
  std::optional<Last>& last = last_[host];
  if (!last || last->report.number != report.number) last = Last{report, Clock::now()};
}

std::optional<Clock::time_point> MembershipReports::since(int host) const {
  return last_[host] ? std::optional(last_[host]->since) : std::nullopt;
}

const MembershipReport* MembershipReports::of(int host) const {
  const std::optional<Last>& last = last_[host];
  if (!last || Clock::now() - last->since >= heartbeat_timeout_) return nullptr;
  return &last->report;
}

MemberState MembershipReports::state_of(int rank) const {
  const int host = placement_.host_of[rank];
  if (const MembershipReport* own = of(host)) return own->ranks[rank];
  MemberState state = last_[host] ? MemberState::kGone : MemberState::kNothing;
  for (int other = 0; other < placement_.num_hosts(); ++other) {
    const MembershipReport* report = other == host ? nullptr : of(other);
    if (report == nullptr || report->ranks[rank] == MemberState::kNothing) continue;
    state = report->ranks[rank];
    if (state == MemberState::kLives) break;
  }
  return state;
}

// If a host does not listen, the others receive nothing from it for the same reason: its leader is
// gone. That is no cut.
bool MembershipReports::are_cut(int a, int b) const {
  const MembershipReport *of_a = of(a), *of_b = of(b);
  if (of_a == nullptr || of_b == nullptr) return true;
  return of_a->listens && of_b->listens &&
         (of_a->ranks[placement_.leader_of(b)] == MemberState::kSilent ||
          of_b->ranks[placement_.leader_of(a)] == MemberState::kSilent);
}

// Each host in turn gathers those that receive from all it has gathered.
std::vector<int> MembershipReports::largest_partition(const std::vector<int>& ranks) const {
  std::set<int> hosts;
  for (const int rank : ranks) hosts.insert(placement_.host_of[rank]);
  std::vector<int> largest;
  for (const int first : hosts) {
    std::vector<int> gathered = {first};
    for (const int host : hosts) {
      const auto is_reached = [&](int other) { return !are_cut(host, other); };
      if (host != first && std::ranges::all_of(gathered, is_reached)) gathered.push_back(host);
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
