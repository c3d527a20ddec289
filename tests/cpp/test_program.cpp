// Programs: those of all ranks are run together in a simulator with bounded slots, in random order,
// on symbolic values that know whose contributions they hold.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "plan/algorithms.h"
#include "plan/collective.h"
#include "plan/plan.h"
#include "plan/program.h"
#include "plans.h"

namespace {

using namespace ringcomm;

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
  Job(const Algorithm& algorithm, const Setting& setting)
      : Job(algorithm.collective, setting.world_size, setting.root,
            [&](int r) { return algorithm.generate(r, setting); }) {
    name = std::string(to_string(collective)) + " " + std::string(algorithm.name) + ", " +
           std::to_string(world_size) + " ranks, root " + std::to_string(setting.root);
  }
  Job(Collective collective, int world_size, int root, const std::function<Plan(int)>& plan_of)
      : collective(collective),
        world_size(world_size),
        num_chunks(plan_of(0).num_chunks),
        contract(collective, world_size, num_chunks, root) {
    for (int r = 0; r < world_size; ++r) {
      programs.push_back(compile(collective, world_size, plan_of, r, root));
      std::vector<bool>& out = outputs.emplace_back(num_chunks);
      for (int k : contract.promised_chunks(r)) out[k] = true;
    }
  }

  const Collective collective;
  const int world_size;
  const int num_chunks;
  const Contract contract;
  std::vector<Program> programs;
  std::vector<std::vector<bool>> outputs;
  std::string name;
};

class Simulator {
 public:
  // Chunk c has elements in the first rounds_of[c] rounds. In place, an output is its input's
  // memory.
  Simulator(const Job& job, std::vector<int> rounds_of, bool in_place)
      : job_(job),
        rounds_of_(std::move(rounds_of)),
        num_rounds_(*std::max_element(rounds_of_.begin(), rounds_of_.end())),
        in_place_(in_place),
        ranks_(job.world_size) {
    for (int r = 0; r < job_.world_size; ++r) {
      ranks_[r].slots.resize(job.programs[r].num_slots);
      ranks_[r].scratch.resize(job.programs[r].num_scratch);
      ranks_[r].input.resize(job_.num_chunks * num_rounds_);
      ranks_[r].output.resize(job_.num_chunks * num_rounds_);
      for (int c = 0; c < job_.num_chunks; ++c) {
        for (int b = 0; b < rounds_of_[c] && job_.contract.holds_before(r, c); ++b) {
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
            promised.contributions[s] =
                job_.contract.after(c).first_in_common(RankSet::single(s)).has_value();
          }
          if (is_reduction(job_.collective)) promised.finished = 1;
          CHECK_WITH(*output(r, c, b) == promised, job_.name);
        }
      }
    }
  }

 private:
  struct Rank {
    int round = 0;
    std::size_t action = 0;
    std::vector<Value> slots, scratch, input, output;
  };

  int at(int chunk, int round) const { return chunk * num_rounds_ + round; }
  Value* output(int r, int chunk, int round) {
    const bool shared = in_place_ && job_.contract.holds_before(r, chunk);
    return &(shared ? ranks_[r].input : ranks_[r].output)[at(chunk, round)];
  }
  Value* find(int r, int chunk, const Location& location) {
    Rank& rank = ranks_[r];
    switch (location.kind) {
      case Location::kInput:
        CHECK_WITH(job_.contract.holds_before(r, chunk), job_.name);
        return &rank.input[at(chunk, rank.round)];
      case Location::kOutput:
        CHECK_WITH(job_.outputs[r][chunk], job_.name);
        return output(r, chunk, rank.round);
      case Location::kScratch:
        return &rank.scratch.at(location.index);
      case Location::kNowhere:
        break;
    }
    return nullptr;
  }

  bool is_done(int r, int round, int action) const {
    return ranks_[r].round > round ||
           (ranks_[r].round == round && static_cast<int>(ranks_[r].action) > action);
  }

  bool may_act(int r, const Action& action) const {
    const Rank& rank = ranks_[r];
    for (const Source& source : action.from) {
      if (!is_done(source.peer, rank.round, source.action)) return false;
    }
    if (action.to.empty()) return true;
    const std::vector<Action>& actions = job_.programs[r].actions;
    int round = rank.round;
    int before = static_cast<int>(rank.action);
    do {
      const int last = std::exchange(before, actions[before].replaces);
      if (before >= last) --round;
    } while (round >= 0 && round >= rounds_of_[actions[before].chunk]);
    if (round < 0) return true;
    return std::ranges::all_of(actions[before].to, [&](const Reader& reader) {
      return is_done(reader.peer, round, reader.action);
    });
  }

  bool advance(int r) {
    Rank& rank = ranks_[r];
    const std::vector<Action>& actions = job_.programs[r].actions;
    if (actions.empty()) rank.round = num_rounds_;
    if (rank.round >= num_rounds_) return false;
    const Action& action = actions[rank.action];
    if (rank.round < rounds_of_[action.chunk]) {
      if (!may_act(r, action)) return false;
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
    auto add = [&](const Value* value) {
      CHECK_WITH(value != nullptr && value->chunk == action.chunk && value->round == rank.round,
                 job_.name);
      if (value == nullptr || value->chunk != action.chunk || value->round != rank.round) return;
      for (int s = 0; s < job_.world_size; ++s) result.contributions[s] += value->contributions[s];
      result.finished += value->finished;
    };
    CHECK_WITH(action.reduce || action.from.size() <= 1, job_.name);
    if (action.reduce || action.from.empty()) add(find(r, action.chunk, action.own));
    for (const Source& source : action.from) add(&ranks_[source.peer].slots.at(source.slot));
    if (action.finish) {
      ++result.finished;
      CHECK_WITH(result.contributions == std::vector<int>(job_.world_size, 1), job_.name);
    }
    if (Value* store = find(r, action.chunk, action.store)) *store = result;
    if (!action.to.empty()) rank.slots.at(action.slot) = result;
  }

  const Job& job_;
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
  for (int i = 0; i < times; ++i) {
    Simulator simulator(job, random_rounds(job.num_chunks, random), random() % 2 != 0);
    const bool ended = simulator.run(random);
    CHECK_WITH(ended, job.name);
    if (ended) simulator.check_outputs();
  }
}

// With one slot less than there are, in the slots' order.
Job with_fewer_slots(Job job) {
  for (Program& program : job.programs) {
    const int num_slots = program.num_slots - 1;
    std::vector<int> in_slot(num_slots, -1);
    for (int round = 0; round < 2; ++round) {
      int publication = 0;
      for (int i = 0; i < static_cast<int>(program.actions.size()); ++i) {
        Action& action = program.actions[i];
        if (action.to.empty()) continue;
        action.slot = publication++ % num_slots;
        action.replaces = std::exchange(in_slot[action.slot], i);
      }
    }
    program.num_slots = num_slots;
  }
  for (Program& program : job.programs) {
    for (Action& action : program.actions) {
      for (Source& source : action.from) {
        source.slot = job.programs[source.peer].actions[source.action].slot;
      }
    }
  }
  return job;
}

TEST(every_algorithm_keeps_its_promise_in_any_order) {
  std::mt19937 random(1);
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective == Collective::kBarrier) continue;
    for (int n = 1; n <= 16; ++n) {
      const bool rooted = has_root(algorithm.collective);
      for (int root = 0; root < (rooted ? n : 1); ++root) {
        Setting setting{n, root};
        simulate(Job(algorithm, setting), rooted ? 2 : 4, random);
        if (!algorithm.two_level) continue;
        for (int r = 0; r < n; ++r) setting.host_of.push_back(static_cast<int>(random() % 3));
        simulate(Job(algorithm, setting), 2, random);
      }
    }
  }
}

TEST(large_groups) {
  std::mt19937 random(2);
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective == Collective::kBarrier) continue;
    simulate(Job(algorithm, {35, has_root(algorithm.collective) ? 16 : 0}), 1, random);
  }
}

TEST(slots_are_as_few_as_can_be) {
  std::mt19937 random(3);
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective == Collective::kBarrier) continue;
    for (const int n : {2, 3, 4, 5, 8}) {
      const Job job(algorithm, {n});
      for (const Program& program : job.programs) {
        CHECK_EQ(program.num_slots, job.programs[0].num_slots);
      }
      if (job.programs[0].num_slots < 2) continue;
      const Job fewer = with_fewer_slots(job);
      Simulator too_few(fewer, std::vector<int>(job.num_chunks, 1), false);
      CHECK_WITH(!too_few.run(random), job.name);
    }
  }
}

TEST(well_known_numbers_of_slots) {
  const auto slots = [](Collective collective, const char* name, int n) {
    return Job(*find_algorithm(collective, name), {n}).programs[0].num_slots;
  };
  for (const int n : {3, 4, 5, 8, 16}) {
    CHECK_EQ(slots(Collective::kAllReduce, "ring", n), 2);
    CHECK_EQ(slots(Collective::kAllReduce, "direct", n), n);
    CHECK_EQ(slots(Collective::kAllReduce, "one_shot", n), 1);
    CHECK_EQ(slots(Collective::kReduceScatter, "direct", n), n - 1);
    CHECK_EQ(slots(Collective::kAllGather, "ring", n), 2);
    CHECK_EQ(slots(Collective::kAllGather, "direct", n), 1);
    CHECK_EQ(slots(Collective::kBroadcast, "chain", n), 1);
    CHECK_EQ(slots(Collective::kAllToAll, "direct", n), n - 1);
  }
}

// Ranks that pass on what neither begins nor ends with them keep it in scratch.
TEST(the_table_says_which_ranks_must_know_all_counts) {
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective != Collective::kAllToAll) continue;
    const Job job(algorithm, {5});
    CHECK_EQ(algorithm.needs_all_counts, job.programs[0].scratch_per_slice > 0);
  }
}

// The ring of four, as it is drawn in program.h for three.
TEST(a_ring_receives_adds_and_sends_on_in_one_action) {
  const Job job(*find_algorithm(Collective::kAllReduce, "ring"), {4});
  const std::vector<Action>& actions = job.programs[0].actions;
  CHECK_EQ(actions.size(), 7u);
  for (std::size_t i = 0; i < actions.size(); ++i) {
    CHECK_EQ(actions[i].chunk, (3 + 3 * static_cast<int>(i)) % 4);
    CHECK_EQ(actions[i].from.size(), i == 0 ? 0u : 1u);
    CHECK_EQ(actions[i].to.size(), i == 6 ? 0u : 1u);
    CHECK_EQ(actions[i].reduce, i >= 1 && i <= 3);
    CHECK_EQ(actions[i].finish, i == 3);
    CHECK_EQ(actions[i].store.kind == Location::kOutput, i >= 3);
  }
}

// How many of the ranks' actions that only take are at the same place everywhere. There each rank
// must be another one's source: what a rank can send is not shared by several.
int check_sources(const Job& job) {
  int places = 0;
  for (std::size_t i = 0;; ++i) {
    std::set<int> sources;
    for (const Program& program : job.programs) {
      if (i >= program.actions.size()) return places;
      const Action& action = program.actions[i];
      if (action.from.size() == 1 && !action.reduce) sources.insert(action.from[0].peer);
    }
    const auto takes = [i](const Program& program) {
      return program.actions[i].from.size() == 1 && !program.actions[i].reduce;
    };
    if (!std::all_of(job.programs.begin(), job.programs.end(), takes)) continue;
    CHECK_WITH(std::ssize(sources) == job.world_size, job.name + ", action " + std::to_string(i));
    ++places;
  }
}

// In trees, and where ranks that are too many for powers of two follow others, one has several to
// serve by the plan itself.
bool serves_several(const Algorithm& algorithm, int world_size) {
  const bool is_power_of_two = (world_size & (world_size - 1)) == 0;
  return algorithm.name == "double_tree" ||
         (algorithm.name == "halving_doubling" && !is_power_of_two);
}

TEST(ranks_take_from_different_ranks_at_the_same_time) {
  for (const Algorithm& algorithm : algorithms()) {
    if (has_root(algorithm.collective) || algorithm.collective == Collective::kBarrier) continue;
    for (int n = 2; n <= 9; ++n) {
      if (serves_several(algorithm, n)) continue;
      for (int per_host = 1; per_host <= n; ++per_host) {
        if (n % per_host != 0 || (!algorithm.two_level && per_host < n)) continue;
        Setting setting{.world_size = n};
        for (int r = 0; r < n; ++r) setting.host_of.push_back(r / per_host);
        const int places = check_sources(Job(algorithm, setting));
        const bool gathers = algorithm.collective == Collective::kAllReduce ||
                             algorithm.collective == Collective::kAllGather ||
                             algorithm.collective == Collective::kAllToAll;
        if (algorithm.name == "direct" && gathers) CHECK_EQ(places, n - 1);
      }
    }
  }
}

TEST(chains_have_common_steps) {
  const Algorithm& chain = *find_algorithm(Collective::kReduce, "chain");
  const Job job(chain, {4, 3});
  for (int r = 0; r < 4; ++r) {
    CHECK_EQ(job.programs[r].num_steps, 3);
    CHECK(job.programs[r].in_lockstep && job.programs[r].is_relay);
    for (const Action& action : job.programs[r].actions) {
      if (!action.from.empty()) CHECK_EQ(action.recv_step, r - 1);
      if (!action.to.empty()) CHECK_EQ(action.send_step, r);
    }
  }
}

Plan plan(std::vector<Step> steps, int num_chunks = 2) { return {num_chunks, std::move(steps)}; }
Transfer chunk(int first, int peer, bool reduce = false) { return {peer, first, 1, reduce}; }

Job broadcast_of(const std::vector<Plan>& plans) {
  return Job(Collective::kBroadcast, static_cast<int>(plans.size()), 0,
             [&](int r) { return plans[r]; });
}

// What is sent on is published while it is received, before what is sent for the first time.
TEST(what_is_sent_on_may_overtake) {
  std::mt19937 random(4);
  const std::vector<Plan> plans = {
      plan({{{chunk(1, 1)}, {}}, {{chunk(0, 1)}, {}}, {}}),
      plan({{{}, {chunk(1, 0)}}, {{chunk(1, 2)}, {chunk(0, 0)}}, {{chunk(0, 2)}, {}}}),
      plan({{}, {{}, {chunk(1, 1)}}, {{}, {chunk(0, 1)}}})};
  simulate(broadcast_of(plans), 20, random);
}

// Rank 1 takes in one step what rank 0 sends in two, the later first.
TEST(steps_that_cannot_be_common) {
  std::mt19937 random(5);
  const std::vector<Plan> plans = {plan({{{chunk(1, 1)}, {}}, {{chunk(0, 1)}, {}}}),
                                   plan({{{}, {chunk(1, 0), chunk(0, 0)}}})};
  const Job job = broadcast_of(plans);
  CHECK(!job.programs[0].in_lockstep);
  simulate(job, 20, random);
}

TEST(what_does_not_match_or_deadlocks_is_refused) {
  const Plan sends = plan({{{chunk(0, 1)}, {}}});
  const Plan nothing = plan({});
  CHECK_THROWS(broadcast_of({sends, nothing}), PlanError);
  // Each sends the other what it has yet to receive.
  const Plan first = plan({{{}, {chunk(0, 1)}}, {{chunk(0, 1)}, {}}});
  const Plan second = plan({{{}, {chunk(0, 0)}}, {{chunk(0, 0)}, {}}});
  CHECK_THROWS(broadcast_of({first, second}), PlanError);
}

}  // namespace
