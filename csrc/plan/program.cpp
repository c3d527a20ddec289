#include "plan/program.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace ringcomm {
namespace {

// All transfers of one chunk in one step.
struct ChunkSends {
  std::vector<int> to;
};
struct ChunkRecvs {
  std::vector<int> from;
  bool reduce = false;
};

struct ChunkStep {
  std::map<int, ChunkSends> sends;
  std::map<int, ChunkRecvs> recvs;
};

std::vector<ChunkStep> by_chunk(const Plan& plan) {
  std::vector<ChunkStep> steps(plan.steps.size());
  for (std::size_t s = 0; s < steps.size(); ++s) {
    for (const Transfer& send : plan.steps[s].sends) {
      for (int c = send.first_chunk; c < send.first_chunk + send.num_chunks; ++c) {
        steps[s].sends[c].to.push_back(send.peer);
      }
    }
    for (const Transfer& recv : plan.steps[s].recvs) {
      for (int c = recv.first_chunk; c < recv.first_chunk + recv.num_chunks; ++c) {
        steps[s].recvs[c].from.push_back(recv.peer);
        steps[s].recvs[c].reduce = recv.reduce;
      }
    }
    for (auto& [chunk, recvs] : steps[s].recvs) std::sort(recvs.from.begin(), recvs.from.end());
  }
  return steps;
}

// What becomes of a chunk's value after a receive in step `s` whose result is sent on (or not) in
// step s + 1.
enum class Fate { kKept, kNeededLater, kReplaced, kForgotten };

Fate fate(const std::vector<ChunkStep>& steps, std::size_t s, int chunk, bool is_output) {
  for (std::size_t later = s + 1; later < steps.size(); ++later) {
    const bool sent_again = later > s + 1 && steps[later].sends.contains(chunk);
    if (sent_again) return Fate::kNeededLater;
    const auto recv = steps[later].recvs.find(chunk);
    if (recv != steps[later].recvs.end()) {
      return recv->second.reduce ? Fate::kNeededLater : Fate::kReplaced;
    }
  }
  return is_output ? Fate::kKept : Fate::kForgotten;
}

bool final_value(const std::vector<ChunkStep>& steps, std::size_t s, int chunk) {
  for (std::size_t later = s + 1; later < steps.size(); ++later) {
    if (steps[later].recvs.contains(chunk)) return false;
  }
  return true;
}

// Whether the peer that gets `chunk` in our step `s` adds to it. The n-th time it gets the chunk
// from us is the n-th time we send it.
bool peer_adds(const std::vector<ChunkStep>& steps, const std::function<Plan(int)>& plan_of,
               int rank, std::size_t s, int chunk) {
  const int peer = steps[s].sends.at(chunk).to.front();
  auto sends = [&](const ChunkStep& step) {
    const auto it = step.sends.find(chunk);
    return it != step.sends.end() &&
           std::find(it->second.to.begin(), it->second.to.end(), peer) != it->second.to.end();
  };
  auto remaining = std::count_if(steps.begin(), steps.begin() + s + 1, sends);
  for (const Step& step : plan_of(peer).steps) {
    for (const Transfer& recv : step.recvs) {
      if (recv.peer != rank || chunk < recv.first_chunk ||
          chunk >= recv.first_chunk + recv.num_chunks) {
        continue;
      }
      if (--remaining == 0) return recv.reduce;
    }
  }
  throw std::invalid_argument("plan: rank " + std::to_string(peer) + " never receives chunk " +
                              std::to_string(chunk) + " that rank " + std::to_string(rank) +
                              " sends it");
}

// What a rank publishes, and in which order compile() lets it do so: what it sends on from the step
// before is published in that step already, while it is received.
struct Publication {
  int executed;  // in this step
  int due;       // the step whose sends contain it, and in which it is read
  int chunk;
  const std::vector<int>* to;
};

std::vector<Publication> publications(const std::vector<ChunkStep>& steps) {
  std::vector<Publication> all;
  const int num_steps = static_cast<int>(steps.size());
  for (int s = 0; s < num_steps; ++s) {
    for (const auto& [chunk, sends] : steps[s].sends) {
      if (s == 0 || !steps[s - 1].recvs.contains(chunk)) all.push_back({s, s, chunk, &sends.to});
    }
    if (s + 1 == num_steps) break;
    for (const auto& [chunk, recvs] : steps[s].recvs) {
      const auto onward = steps[s + 1].sends.find(chunk);
      if (onward != steps[s + 1].sends.end()) all.push_back({s, s + 1, chunk, &onward->second.to});
    }
  }
  return all;
}

// The smallest number of slots that is safe, however the ranks are scheduled.
//
// An action executed in step e may wait for an old slot to be read only if that slice was due in a
// step before e: the rank that is furthest behind is then never the one waited for, so it can
// always go on. Hence slots must cover all slices published before it that are due in step e or
// later, and a peer must be able to leave unread those of them that are for it. Rounds need not be
// looked at: whatever one round publishes is due before the next begins.
void size_slots(const std::vector<ChunkStep>& steps, Program& program) {
  const std::vector<Publication> published = publications(steps);
  std::map<int, int> unread;
  std::size_t first = 0;
  for (std::size_t i = 0; i < published.size(); ++i) {
    for (; published[first].due < published[i].executed; ++first) {
      for (int peer : *published[first].to) --unread[peer];
    }
    for (int peer : *published[i].to) {
      program.max_unread = std::max(program.max_unread, ++unread[peer]);
    }
    program.num_slots = std::max(program.num_slots, static_cast<int>(i + 1 - first));
  }
}

void count_steps(const std::vector<ChunkStep>& steps, Program& program) {
  const int num_steps = static_cast<int>(steps.size());
  program.num_steps = std::max(program.num_steps, num_steps);
  for (int s = 0; s < num_steps; ++s) {
    int added = 0;
    for (const auto& [chunk, recvs] : steps[s].recvs) {
      if (recvs.reduce) added += static_cast<int>(recvs.from.size());
    }
    if (added > 0) program.num_sliced_steps = std::max(program.num_sliced_steps, s + 1);
    program.max_added = std::max(program.max_added, added);
    program.max_sent = std::max(program.max_sent, static_cast<int>(steps[s].sends.size()));
  }
}

// A peer takes the slices of one step in the order of their chunks, so they must be published in
// that order, whether they are sent on or sent for the first time.
void check_order(const std::vector<Publication>& published, int rank) {
  std::map<int, std::pair<int, int>> last;  // step and chunk, by peer
  for (const Publication& p : published) {
    for (int peer : *p.to) {
      const auto [it, is_first] = last.try_emplace(peer, p.due, p.chunk);
      const std::pair<int, int> before = std::exchange(it->second, {p.due, p.chunk});
      if (is_first || before < it->second) continue;
      throw std::invalid_argument(
          "plan: rank " + std::to_string(rank) + " sends rank " + std::to_string(peer) +
          " in step " + std::to_string(p.due) + " chunk " + std::to_string(before.second) +
          ", which it has only just received, together with chunk " + std::to_string(p.chunk));
    }
  }
}

}  // namespace

Program compile(const std::function<Plan(int rank)>& plan_of, int rank, int world_size,
                const std::vector<bool>& inputs, const std::vector<bool>& outputs) {
  const Plan plan = plan_of(rank);
  Program program;
  program.num_chunks = plan.num_chunks;
  const std::vector<ChunkStep> steps = by_chunk(plan);
  check_order(publications(steps), rank);
  std::vector<bool> have = inputs;
  std::vector<bool> stored(plan.num_chunks, false);
  std::vector<bool> received(plan.num_chunks, false);
  for (const ChunkStep& step : steps) {
    for (const auto& [chunk, recvs] : step.recvs) received[chunk] = true;
  }
  // A chunk that starts here and stays here: the first to send it stores it too.
  auto stays = [&](int chunk) {
    return outputs[chunk] && inputs[chunk] && !received[chunk] && !stored[chunk];
  };

  std::vector<std::map<int, bool>> sent_early(steps.size() + 1);
  for (std::size_t s = 0; s < steps.size(); ++s) {
    for (const auto& [chunk, sends] : steps[s].sends) {
      if (sent_early[s].contains(chunk)) continue;
      if (!have[chunk]) {
        throw std::invalid_argument("plan: rank " + std::to_string(rank) + " sends chunk " +
                                    std::to_string(chunk) + " in step " + std::to_string(s) +
                                    " before it has it");
      }
      Action action;
      action.chunk = chunk;
      action.own_stored = stored[chunk];
      action.store = stays(chunk);
      action.to = sends.to;
      action.send_step = static_cast<int>(s);
      stored[chunk] = stored[chunk] || action.store;
      program.actions.push_back(std::move(action));
    }
    for (const auto& [chunk, recvs] : steps[s].recvs) {
      Action action;
      action.chunk = chunk;
      action.from = recvs.from;
      action.recv_step = static_cast<int>(s);
      action.reduce = recvs.reduce;
      action.own_stored = stored[chunk];
      if (s + 1 < steps.size()) {
        const auto onward = steps[s + 1].sends.find(chunk);
        if (onward != steps[s + 1].sends.end()) {
          action.to = onward->second.to;
          action.send_step = static_cast<int>(s) + 1;
          sent_early[s + 1][chunk] = true;
        }
      }
      switch (fate(steps, s, chunk, outputs[chunk])) {
        case Fate::kKept:
          action.store = true;
          break;
        case Fate::kNeededLater:
          if (!outputs[chunk]) {
            throw std::invalid_argument("plan: rank " + std::to_string(rank) +
                                        " would have to keep a partial sum of chunk " +
                                        std::to_string(chunk) + ", which is not in its output");
          }
          action.store = true;
          break;
        case Fate::kReplaced:
        case Fate::kForgotten:
          break;
      }
      action.finish =
          action.reduce && (action.to.empty() ? final_value(steps, s, chunk)
                                              : !peer_adds(steps, plan_of, rank, s + 1, chunk));
      have[chunk] = true;
      stored[chunk] = stored[chunk] || action.store;
      program.actions.push_back(std::move(action));
    }
  }
  for (int chunk = 0; chunk < plan.num_chunks; ++chunk) {
    if (!stays(chunk)) continue;
    Action action;
    action.chunk = chunk;
    action.store = true;
    action.finish = true;
    program.actions.push_back(std::move(action));
  }

  for (int r = 0; r < world_size; ++r) {
    const std::vector<ChunkStep> theirs = by_chunk(plan_of(r));
    size_slots(theirs, program);
    count_steps(theirs, program);
  }
  if (program.num_chunks == 1 && program.num_steps > 1) {
    program.num_sliced_steps = program.num_steps;
  }
  return program;
}

}  // namespace ringcomm
