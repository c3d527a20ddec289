#include "core/call.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/programs.h"

namespace ringcomm {
namespace {

struct Opinion {
  Call call;
  std::vector<int> ranks;
};

// What differs between opinions that are described by the same words.
const char* what_differs(const std::vector<Opinion>& opinions) {
  const Call& first = opinions[0].call;
  const auto any = [&](const auto& is_so) {
    return std::any_of(opinions.begin(), opinions.end(),
                       [&](const Opinion& opinion) { return is_so(opinion.call); });
  };
  if (any([&](const Call& call) { return call.algorithm != first.algorithm; })) {
    return " with another algorithm (are algorithm= and reproducible=, or RINGCOMM_ALGORITHM and "
           "RINGCOMM_REPRODUCIBLE, the same on every rank?)";
  }
  if (any([](const Call& call) { return call.plan == Prepared::kNoProgram; })) {
    return ", and on some of them the plan for it is refused, which they say themselves";
  }
  if (any([&](const Call& call) { return call.plan != first.plan; })) {
    return " by another plan (is the same one registered on every rank, for the same hosts?)";
  }
  return " with other counts per rank";
}

}  // namespace

std::uint64_t digest_of(const Call& call) {
  std::uint64_t users[3];
  static_assert(sizeof(users) == sizeof(call.users));
  std::memcpy(users, &call.users, sizeof(users));
  const auto byte = [](auto number, int place) {
    return static_cast<std::uint64_t>(static_cast<std::uint8_t>(number)) << (8 * place);
  };
  Digest digest;
  digest.add(call.collective == Collective::kAllToAll ? 0 : call.count);
  digest.add(call.layout);
  digest.add(call.plan);
  for (const std::uint64_t word : users) digest.add(word);
  digest.add(std::uint64_t{static_cast<std::uint32_t>(call.root)} << 32 | byte(call.refused, 0));
  digest.add(byte(call.collective, 0) | byte(call.dtype, 1) | byte(call.op, 2) |
             byte(call.reduces, 3) | byte(call.algorithm, 4));
  return digest.value();
}

std::string describe(const Call& call, const Members& members) {
  if (call.refused) return "an invalid call";
  std::string text = to_string(call.collective);
  if (call.collective == Collective::kBarrier) return text + "()";
  text += "(count=" + std::to_string(users_count(call.users, call.count)) +
          ", dtype=" + name({call.dtype, call.users});
  if (call.reduces) text += std::string(", op=") + name(call.op);
  if (call.root >= 0) text += ", root=" + std::to_string(members.global(call.root));
  return text + ")";
}

bool is_valid(const Call& call) {
  return static_cast<int>(call.collective) < kNumCollectives && is_valid(call.dtype) &&
         is_valid(call.op) && call.users.is_valid() && call.refused <= 1;
}

std::string describe_numbered(const Call& call, const Members& members) {
  return describe(call, members) + " #" + std::to_string(call.sequence);
}

std::string describe_mismatch(const std::vector<std::optional<Call>>& calls,
                              const Members& members) {
  std::vector<Opinion> opinions;
  for (std::size_t r = 0; r < calls.size(); ++r) {
    if (!calls[r]) continue;
    auto same = std::find_if(opinions.begin(), opinions.end(),
                             [&](const Opinion& o) { return o.call.matches(*calls[r]); });
    if (same == opinions.end()) {
      opinions.push_back({*calls[r], {}});
      same = opinions.end() - 1;
    }
    same->ranks.push_back(static_cast<int>(r));
  }
  std::string text;
  bool same_words = true;
  for (std::size_t i = 0; i < opinions.size(); ++i) {
    if (i > 0) text += i + 1 == opinions.size() ? ", but " : ", ";
    text += members.names(opinions[i].ranks) + " called " + describe(opinions[i].call, members);
    same_words = same_words && describe(opinions[i].call) == describe(opinions[0].call);
  }
  if (same_words && opinions.size() > 1) text += what_differs(opinions);
  return text;
}

Call make_call(Collective collective, std::size_t count, const ElementType& type) {
  Call call;
  call.collective = collective;
  call.count = count;
  call.dtype = type.dtype;
  call.users = type.users;
  return call;
}

Call make_call(Collective collective, std::size_t count, const Reduce& reduce) {
  Call call = make_call(collective, count, {reduce.dtype, reduce.users});
  call.reduces = 1;
  call.op = reduce.op;
  if (!supports(reduce.dtype, reduce.op)) {
    throw Error(ErrorKind::kInvalidArgument, std::string(to_string(collective)) +
                                                 ": op=" + name(reduce.op) +
                                                 " is not defined for dtype=" + name(reduce.dtype));
  }
  return call;
}

void set_root(Call& call, int root, int world_size) {
  call.root = root;
  if (root >= 0 && root < world_size) return;
  throw Error(ErrorKind::kInvalidArgument,
              std::string(to_string(call.collective)) + ": root is " + std::to_string(root) +
                  "; it must be a rank of the group, 0 to " + std::to_string(world_size - 1));
}

}  // namespace ringcomm
