// The executor on simulated streams: random collectives in random orders of execution, and
// what happens without each of its waits.
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "collective_cases.h"
#include "stream_simulator.h"
#include "streams/collectives.h"
#include "streams/executor.h"

namespace {

using namespace ringcomm;
using cases::Buffer;
using streams::Channel;
using streams::Executor;
using streams::Layout;

constexpr std::chrono::milliseconds kNoTimeout{0};

struct Setting {
  int world_size;
  Algorithm algorithm;
  Layout layout;
  int num_collectives;

  std::string name() const {
    return std::to_string(world_size) + " ranks, " + std::to_string(layout.num_channels) +
           " channels, " + std::to_string(layout.slices_in_flight) + " slices of " +
           std::to_string(layout.slice_nbytes) + " bytes";
  }
};

// One rank with a stream of its user's, and what it runs its collectives on.
class Rank : public streams::Collectives {
 public:
  Rank(simulated::Simulator& simulator, int rank, const Setting& setting, int dropped)
      : Collectives(rank, setting.world_size, setting.algorithm),
        simulator_(simulator),
        api_(simulator, rank, dropped),
        user_(stream("user")),
        origin_(stream("origin")),
        event_(simulator.new_event()),
        executor_(rank, setting.layout, channels(setting.layout), simulator.new_event()) {}

  // Something the user does with the memory, such as filling or checking it.
  void on_user_stream(std::function<void()> body) {
    simulator_.kernel(user_, [] {}, std::move(body));
  }

 private:
  int stream(const std::string& name) {
    return simulator_.new_stream(name + " of rank " + std::to_string(rank()));
  }

  std::vector<Channel<simulated::Api>> channels(const Layout& layout) {
    std::vector<Channel<simulated::Api>> all;
    for (int c = 0; c < layout.num_channels; ++c) {
      scratch_.emplace_back(layout.channel_scratch_nbytes(world_size()));
      const std::string name = std::to_string(c);
      Channel<simulated::Api> channel{
          .comm = c,
          .communication = c == 0 ? origin_ : stream("communication " + name),
          .reduction = stream("reduction " + name),
          .scratch = scratch_[c].data(),
          .communicated = simulator_.new_event(),
          .reduced = {}};
      for (int e = 0; e < layout.slices_in_flight; ++e) {
        channel.reduced.push_back(simulator_.new_event());
      }
      all.push_back(std::move(channel));
    }
    return all;
  }

  void run(Call, const Program& program, std::span<const Chunk> chunks, const Reduction& reduction,
           std::chrono::milliseconds) override {
    simulator_.record(event_, user_);
    simulator_.wait(origin_, event_);
    executor_.run(api_, program, chunks, reduction);
    simulator_.record(event_, origin_);
    simulator_.wait(user_, event_);
  }

  simulated::Simulator& simulator_;
  simulated::Api api_;
  const int user_, origin_, event_;
  // By channel, and exactly as long as the layout promises: AddressSanitizer sees more.
  std::deque<std::vector<std::byte>> scratch_;
  Executor<simulated::Api> executor_;
};

Setting random_setting(std::mt19937_64& random) {
  Setting s;
  s.world_size = 2 + static_cast<int>(random() % 7);
  s.algorithm = random() % 2 ? Algorithm::kRing : Algorithm::kDirect;
  // All the slots that a premul_sum of 8 ranks takes are 14 pieces of 256 bytes.
  s.layout = {.num_channels = 1 + static_cast<int>(random() % 4),
              .slices_in_flight = 2 + static_cast<int>(random() % 3),
              .slice_nbytes = (14 + random() % 4) * streams::kAlignment,
              .min_slice_nbytes = random() % 2 ? streams::kAlignment : 1};
  s.num_collectives = 1 + static_cast<int>(random() % 3);
  return s;
}

cases::Case random_case(const Setting& setting, std::mt19937_64& random) {
  Collective collective;
  do {
    collective = cases::kCollectives[random() % cases::kCollectives.size()];
  } while (collective == Collective::kBarrier);
  const std::size_t nbytes = random() % 4 == 0 ? random() % 100 : random() % (16 << 10);
  return cases::random_case(collective, setting.world_size, nbytes, random);
}

// Runs one random schedule. False: a result is wrong. Throws if it deadlocks.
bool run_schedule(std::uint64_t seed, int dropped = -1) {
  std::mt19937_64 random(seed);
  const Setting setting = random_setting(random);
  simulated::Simulator simulator(random());
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int r = 0; r < setting.world_size; ++r) {
    ranks.push_back(std::make_unique<Rank>(simulator, r, setting, dropped));
  }
  std::deque<cases::Case> kept;
  std::deque<cases::Part> parts;
  bool right = true;
  for (int i = 0; i < setting.num_collectives; ++i) {
    // Often what was done before is done again, with other memory.
    const bool again = i > 0 && random() % 2;
    const cases::Case& c = again ? kept.back() : kept.emplace_back(random_case(setting, random));
    for (auto& rank : ranks) {
      cases::Part& part = parts.emplace_back(c, rank->rank(), setting.world_size);
      rank->on_user_stream([&part] { part.fill(); });
      part.call(*rank, kNoTimeout);
      rank->on_user_stream([&part, &right] {
        right = right && part.right();
        part.poison();
      });
    }
  }
  simulator.run();
  return right;
}

std::string describe(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const Setting setting = random_setting(random);
  return "seed " + std::to_string(seed) + ": " + setting.name();
}

}  // namespace

TEST(every_order_of_execution_gives_the_right_results) {
  for (std::uint64_t seed = 0; seed < 10000; ++seed) {
    try {
      CHECK_WITH(run_schedule(seed), describe(seed));
    } catch (const std::exception& error) {
      CHECK_WITH(false, describe(seed) + ": " + error.what());
    }
  }
}

// A wait that is not missed in so many schedules is not needed.
TEST(without_any_one_wait_results_go_wrong) {
  for (int wait = 0; wait < streams::kNumWaits; ++wait) {
    bool missed = false;
    for (std::uint64_t seed = 0; seed < 2000 && !missed; ++seed) missed = !run_schedule(seed, wait);
    CHECK_WITH(missed, "wait " + std::to_string(wait));
  }
}
