#include "status.h"

#include <algorithm>
#include <cstdio>

namespace ringcomm {
namespace {

struct Opinion {
  Call call;
  std::vector<int> ranks;
};

}  // namespace

std::string describe(const Call& call) {
  std::string text = to_string(call.collective);
  if (call.collective == Collective::kBarrier) return text + "()";
  text += "(count=" + std::to_string(call.count) + ", dtype=" + name(call.dtype);
  if (call.reduces) text += std::string(", op=") + name(call.op);
  if (call.root >= 0) text += ", root=" + std::to_string(call.root);
  return text + ")";
}

std::string describe_numbered(const Call& call) {
  return describe(call) + " #" + std::to_string(call.sequence);
}

std::string describe_ranks(const std::vector<int>& ranks) {
  if (ranks.empty()) return "no rank";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

std::string describe_mismatch(const std::vector<std::optional<Call>>& calls) {
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
    text += describe_ranks(opinions[i].ranks) + " called " + describe(opinions[i].call);
    same_words = same_words && describe(opinions[i].call) == describe(opinions[0].call);
  }
  if (same_words && opinions.size() > 1) {
    const bool algorithm = std::any_of(opinions.begin(), opinions.end(), [&](const Opinion& o) {
      return o.call.algorithm != opinions[0].call.algorithm;
    });
    text += algorithm ? " with another algorithm (is RINGCOMM_ALGORITHM the same on every rank?)"
                      : " with other counts per rank";
  }
  return text;
}

std::string describe_seconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g s", seconds);
  return text;
}

}  // namespace ringcomm
