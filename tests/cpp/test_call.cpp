// That the digests of calls agree where the calls match, and only there.
#include <functional>
#include <vector>

#include "check.h"
#include "core/call.h"

namespace ringcomm {
namespace {

using Change = std::function<void(Call&)>;

const std::vector<Change> kChanges = {
    [](Call&) {},
    [](Call& c) { c.sequence = 2; },
    [](Call& c) { c.count = 2; },
    [](Call& c) { c.layout = 1; },
    [](Call& c) { c.plan = 1; },
    [](Call& c) { c.root = 0; },
    [](Call& c) { c.collective = Collective::kAllToAll; },
    [](Call& c) { c.collective = Collective::kReduce; },
    [](Call& c) { c.dtype = DType::kFloat64; },
    [](Call& c) { c.op = ReduceOp::kMax; },
    [](Call& c) { c.reduces = 0; },
    [](Call& c) { c.algorithm = 3; },
    [](Call& c) { c.users.per_element = 2; },
    [](Call& c) { c.users.name[22] = 'x'; },
    [](Call& c) { c.eager = 1; },
    [](Call& c) { c.refused = 1; },
};

TEST(digests_agree_where_calls_match) {
  for (const Collective collective : {Collective::kAllReduce, Collective::kAllToAll}) {
    std::vector<Call> calls;
    for (const Change& change : kChanges) {
      for (const Change& then : kChanges) {
        Call& call =
            calls.emplace_back(make_call(collective, 1, Reduce{DType::kFloat32, ReduceOp::kSum}));
        change(call);
        then(call);
      }
    }
    for (const Call& a : calls) {
      for (const Call& b : calls) {
        // Refused calls match nothing, whatever their digests.
        if (a.refused || b.refused) {
          CHECK(!a.matches(b));
          CHECK(a.refused == b.refused || digest_of(a) != digest_of(b));
        } else {
          CHECK(a.matches(b) == (digest_of(a) == digest_of(b)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace ringcomm
