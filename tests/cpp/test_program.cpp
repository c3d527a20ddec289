// Programs: those of all ranks are run together in a simulator with bounded slots, in random order,
// on symbolic values that know whose contributions they hold.
#include <algorithm>
#include <deque>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "communicator.h"
#include "plan/chain.h"
#include "plan/collective.h"
#include "plan/direct.h"
#include "plan/program.h"
#include "plan/ring.h"
#include "plan/rooted.h"
#include "shm/layout.h"

namespace {

using namespace ringcomm;

struct Case {
  const char* name;
  Collective collective;
  Plan (*plan)(int rank, int world_size, int root);
  bool rooted;
  int (*num_slots)(int world_size);  // what the algorithm should need, from 2 ranks on
  bool cyclic;                       // with one slot less, every order of execution deadlocks
};

template <Plan (*plan)(int, int)>
Plan unrooted(int rank, int world_size, int) {
  return plan(rank, world_size);
}

int one(int) { return 1; }
int two(int) { return 2; }
int others(int n) { return n - 1; }
int all(int n) { return n; }

const std::vector<Case> kCases = {
    {"ring_all_reduce", Collective::kAllReduce, unrooted<ring_all_reduce>, false, two, true},
    {"direct_all_reduce", Collective::kAllReduce, unrooted<direct_all_reduce>, false, all, true},
    {"one_shot_all_reduce", Collective::kAllReduce, unrooted<one_shot_all_reduce>, false, one,
     true},
    {"ring_reduce_scatter", Collective::kReduceScatter, unrooted<ring_reduce_scatter>, false,
     [](int n) { return n == 2 ? 1 : 2; }, true},
    {"direct_reduce_scatter", Collective::kReduceScatter, unrooted<direct_reduce_scatter>, false,
     others, true},
    {"ring_all_gather", Collective::kAllGather, unrooted<ring_all_gather>, false,
     [](int n) { return n == 2 ? 1 : 2; }, true},
    {"direct_all_gather", Collective::kAllGather, unrooted<direct_all_gather>, false, one, true},
    {"all_to_all", Collective::kAllToAll, unrooted<all_to_all>, false, others, true},
    {"chain_broadcast", Collective::kBroadcast, chain_broadcast, true, one, true},
    {"direct_broadcast", Collective::kBroadcast, direct_broadcast, true, one, true},
    {"chain_reduce", Collective::kReduce, chain_reduce, true, one, true},
    {"direct_reduce", Collective::kReduce, direct_reduce, true, all, false},
    {"gather", Collective::kGather, gather, true, one, true},
    {"scatter", Collective::kScatter, scatter, true, others, false},
};

bool reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduceScatter ||
         collective == Collective::kReduce;
}

// A slice: how often each rank has contributed, and how often the sum was finished.
struct Value {
  int chunk = -1;
  int round = -1;
  std::vector<int> contributions;
  int finished = 0;

  bool operator==(const Value&) const = default;
};

// All ranks' programs of one collective, with what they begin and must end with.
struct Job {
  Job(const Case& c, int world_size, int root)
      : test_case(c),
        world_size(world_size),
        num_chunks(c.plan(0, world_size, root).num_chunks),
        contract(c.collective, world_size, num_chunks, root) {
    auto plan_of = [&](int r) { return c.plan(r, world_size, root); };
    for (int r = 0; r < world_size; ++r) {
      std::vector<bool> in(num_chunks), out(num_chunks);
      for (int k = 0; k < num_chunks; ++k) in[k] = !contract.before(r, k).empty();
      for (int k : contract.promised_chunks(r)) out[k] = true;
      programs.push_back(compile(plan_of, r, world_size, in, out));
      inputs.push_back(in);
      outputs.push_back(out);
    }
    name = std::string(c.name) + ", " + std::to_string(world_size) + " ranks, root " +
           std::to_string(root);
  }

  const Case& test_case;
  const int world_size;
  const int num_chunks;
  const Contract contract;
  std::vector<Program> programs;
  std::vector<std::vector<bool>> inputs, outputs;
  std::string name;
};

class Simulator {
 public:
  // Chunk c has elements in the first rounds_of[c] rounds. In place, an output is its input's
  // memory.
  Simulator(const Job& job, int num_slots, int max_unread, std::vector<int> rounds_of,
            bool in_place)
      : job_(job),
        num_slots_(num_slots),
        max_unread_(max_unread),
        rounds_of_(std::move(rounds_of)),
        num_rounds_(*std::max_element(rounds_of_.begin(), rounds_of_.end())),
        in_place_(in_place),
        ranks_(job.world_size) {
    for (int r = 0; r < job_.world_size; ++r) {
      ranks_[r].slots.resize(num_slots);
      ranks_[r].unread.resize(job_.world_size);
      ranks_[r].input.resize(job_.num_chunks * num_rounds_);
      ranks_[r].output.resize(job_.num_chunks * num_rounds_);
      for (int c = 0; c < job_.num_chunks; ++c) {
        for (int b = 0; b < rounds_of_[c] && job_.inputs[r][c]; ++b) {
          Value own{c, b, std::vector<int>(job_.world_size), 0};
          own.contributions[r] = 1;
          ranks_[r].input[at(c, b)] = own;
        }
      }
    }
  }

  // Lets ranks advance in random order, sometimes one as far as it gets. False: deadlock.
  bool run(std::mt19937& random) {
    std::vector<int> order(job_.world_size);
    for (int r = 0; r < job_.world_size; ++r) order[r] = r;
    const bool bursts = random() % 2 != 0;
    for (bool progress = true; progress;) {
      progress = false;
      std::shuffle(order.begin(), order.end(), random);
      for (int r : order) {
        while (advance(r)) {
          progress = true;
          if (!bursts) break;
        }
      }
    }
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [&](const Rank& rank) { return rank.round >= num_rounds_; });
  }

  void check_outputs() {
    for (int r = 0; r < job_.world_size; ++r) {
      for (int c = 0; c < job_.num_chunks; ++c) {
        if (!job_.outputs[r][c]) continue;
        for (int b = 0; b < rounds_of_[c]; ++b) {
          Value promised{c, b, std::vector<int>(job_.world_size), 0};
          for (int s = 0; s < job_.world_size; ++s) {
            promised.contributions[s] = holds(job_.contract.after(c), s);
          }
          if (reduces(job_.test_case.collective)) promised.finished = 1;
          Value result = output(r, c, b);
          if (!reduces(job_.test_case.collective)) result.finished = 0;
          CHECK_WITH(result == promised, job_.name);
        }
      }
    }
  }

 private:
  struct Slot {
    Value value;
    int unread = 0;
  };
  struct Rank {
    int round = 0;
    std::size_t action = 0;
    std::vector<Slot> slots;
    int next_slot = 0;
    std::vector<std::deque<int>> unread;  // by reader: the slots published for it
    std::vector<Value> input, output;
  };

  static bool holds(const RankSet& set, int rank) {
    return set.first_in_common(RankSet::single(rank)).has_value();
  }
  int at(int chunk, int round) const { return chunk * num_rounds_ + round; }
  Value& output(int r, int chunk, int round) {
    return (in_place_ && job_.inputs[r][chunk] ? ranks_[r].input
                                               : ranks_[r].output)[at(chunk, round)];
  }

  bool advance(int r) {
    Rank& rank = ranks_[r];
    const std::vector<Action>& actions = job_.programs[r].actions;
    if (actions.empty()) rank.round = num_rounds_;
    if (rank.round >= num_rounds_) return false;
    const Action& action = actions[rank.action];
    if (rank.round < rounds_of_[action.chunk]) {
      for (int peer : action.from) {
        if (ranks_[peer].unread[r].empty()) return false;
      }
      if (!action.to.empty() && rank.slots[rank.next_slot].unread > 0) return false;
      for (int peer : action.to) {
        if (static_cast<int>(rank.unread[peer].size()) >= max_unread_) return false;
      }
      perform(r, action);
    }
    if (++rank.action == actions.size()) {
      rank.action = 0;
      ++rank.round;
    }
    return true;
  }

  void perform(int r, const Action& action) {
    Rank& rank = ranks_[r];
    Value result{action.chunk, rank.round, std::vector<int>(job_.world_size), 0};
    auto add = [&](const Value& value) {
      CHECK_WITH(value.chunk == action.chunk && value.round == rank.round, job_.name);
      if (value.chunk != action.chunk || value.round != rank.round) return;
      for (int s = 0; s < job_.world_size; ++s) result.contributions[s] += value.contributions[s];
      result.finished += value.finished;
    };
    CHECK_WITH(action.reduce || action.from.size() <= 1, job_.name);
    if (action.reduce || action.from.empty()) {
      if (action.own_stored) {
        CHECK_WITH(job_.outputs[r][action.chunk], job_.name);
        add(output(r, action.chunk, rank.round));
      } else {
        CHECK_WITH(job_.inputs[r][action.chunk], job_.name);
        add(rank.input[at(action.chunk, rank.round)]);
      }
    }
    for (int peer : action.from) {
      Slot& slot = ranks_[peer].slots[ranks_[peer].unread[r].front()];
      add(slot.value);
      ranks_[peer].unread[r].pop_front();
      --slot.unread;
    }
    if (action.finish) {
      ++result.finished;
      if (reduces(job_.test_case.collective)) {
        CHECK_WITH(result.contributions == std::vector<int>(job_.world_size, 1), job_.name);
      }
    }
    if (action.store) {
      CHECK_WITH(job_.outputs[r][action.chunk], job_.name);
      output(r, action.chunk, rank.round) = result;
    }
    if (action.to.empty()) return;
    Slot& slot = rank.slots[rank.next_slot];
    slot = {result, static_cast<int>(action.to.size())};
    for (int peer : action.to) rank.unread[peer].push_back(rank.next_slot);
    rank.next_slot = (rank.next_slot + 1) % num_slots_;
  }

  const Job& job_;
  const int num_slots_;
  const int max_unread_;
  const std::vector<int> rounds_of_;
  const int num_rounds_;
  const bool in_place_;
  std::vector<Rank> ranks_;
};

// Even chunks, some without elements in the last rounds, or one chunk that goes on alone.
std::vector<int> random_rounds(int num_chunks, std::mt19937& random) {
  std::vector<int> rounds_of(num_chunks, 1 + random() % 3);
  switch (random() % 3) {
    case 0:
      for (int& rounds : rounds_of) rounds = random() % 3;
      break;
    case 1:
      rounds_of.assign(num_chunks, 0);
      rounds_of[random() % num_chunks] = 12;
      break;
  }
  rounds_of[random() % num_chunks] += 1;
  return rounds_of;
}

void simulate(const Job& job, int times, std::mt19937& random) {
  const Program& first = job.programs[0];
  for (const Program& program : job.programs) {
    CHECK_EQ(program.num_slots, first.num_slots);
    CHECK_EQ(program.max_unread, first.max_unread);
  }
  for (int i = 0; i < times; ++i) {
    Simulator simulator(job, std::max(first.num_slots, 1), first.max_unread,
                        random_rounds(job.num_chunks, random), random() % 2 != 0);
    const bool ended = simulator.run(random);
    CHECK_WITH(ended, job.name);
    if (ended) simulator.check_outputs();
  }
}

TEST(every_program_keeps_its_promise_in_any_order) {
  std::mt19937 random(1);
  for (const Case& c : kCases) {
    for (int n = 1; n <= 16; ++n) {
      for (int root = 0; root < (c.rooted ? n : 1); ++root) {
        simulate(Job(c, n, root), c.rooted ? 2 : 6, random);
      }
    }
  }
}

TEST(the_largest_group) {
  std::mt19937 random(2);
  for (const Case& c : kCases) {
    const Job job(c, kMaxWorldSize, c.rooted ? kMaxWorldSize / 3 : 0);
    simulate(job, 1, random);
    CHECK(job.programs[0].max_unread <= shm::kUnread);
  }
}

TEST(slots_are_as_many_as_the_algorithm_needs) {
  std::mt19937 random(3);
  for (const Case& c : kCases) {
    for (int n : {2, 3, 4, 5, 8, 16}) {
      const Job job(c, n, 0);
      const Program& program = job.programs[0];
      CHECK_WITH(program.num_slots == c.num_slots(n),
                 job.name + " has " + std::to_string(program.num_slots));
      if (!c.cyclic || program.num_slots == 1 || n > 8) continue;
      Simulator too_few(job, program.num_slots - 1, shm::kUnread,
                        std::vector<int>(job.num_chunks, 2), false);
      CHECK_WITH(!too_few.run(random), job.name);
    }
  }
}

// The ring of four, as it is drawn in program.h for three.
TEST(a_ring_receives_adds_and_sends_on_in_one_action) {
  const Job job(kCases[0], 4, 0);
  const std::vector<Action>& actions = job.programs[0].actions;
  CHECK_EQ(actions.size(), 7u);
  for (std::size_t i = 0; i < actions.size(); ++i) {
    CHECK_EQ(actions[i].chunk, (3 + 3 * static_cast<int>(i)) % 4);
    CHECK_EQ(actions[i].from.size(), i == 0 ? 0u : 1u);
    CHECK_EQ(actions[i].to.size(), i == 6 ? 0u : 1u);
    CHECK_EQ(actions[i].reduce, i >= 1 && i <= 3);
    CHECK_EQ(actions[i].finish, i == 3);
    CHECK_EQ(actions[i].store, i >= 3);
  }
}

Plan only(Step step) { return {.num_chunks = 2, .steps = {std::move(step)}}; }

TEST(what_cannot_be_compiled_is_refused) {
  const std::vector<bool> none(2, false), both(2, true);
  auto plan_of = [](std::vector<Plan> plans) { return [plans](int r) { return plans[r]; }; };

  const Plan sends = only({.sends = {{.peer = 1, .first_chunk = 0, .num_chunks = 1}}, .recvs = {}});
  const Plan keeps = only(
      {.sends = {}, .recvs = {{.peer = 0, .first_chunk = 0, .num_chunks = 1, .reduce = true}}});
  CHECK_THROWS(compile(plan_of({sends, keeps}), 0, 2, none, both), std::invalid_argument);

  // Twice a sum: the first would have to be kept where there is no output.
  Plan sends_twice = sends, keeps_twice = keeps;
  sends_twice.steps.push_back(sends.steps[0]);
  keeps_twice.steps.push_back(keeps.steps[0]);
  compile(plan_of({sends_twice, keeps_twice}), 1, 2, both, both);
  CHECK_THROWS(compile(plan_of({sends_twice, keeps_twice}), 1, 2, both, none),
               std::invalid_argument);

  // Chunk 1, sent on as it comes, would overtake chunk 0.
  Plan overtakes{.num_chunks = 2, .steps = {}};
  overtakes.steps.push_back(
      {.sends = {}, .recvs = {{.peer = 1, .first_chunk = 1, .num_chunks = 1}}});
  overtakes.steps.push_back(
      {.sends = {{.peer = 1, .first_chunk = 0, .num_chunks = 2}}, .recvs = {}});
  Plan peer{.num_chunks = 2, .steps = {}};
  peer.steps.push_back({.sends = {{.peer = 0, .first_chunk = 1, .num_chunks = 1}}, .recvs = {}});
  peer.steps.push_back({.sends = {}, .recvs = {{.peer = 0, .first_chunk = 0, .num_chunks = 2}}});
  CHECK_THROWS(compile(plan_of({overtakes, peer}), 0, 2, both, both), std::invalid_argument);
}

}  // namespace
