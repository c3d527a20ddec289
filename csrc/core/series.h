// A list in a store, which anybody may add to: a counter of the places that are taken, and what
// stands in each. Nothing in it is ever changed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/store.h"

namespace ringcomm {

class Series {
 public:
  // Reads begin at that place.
  Series(Store& store, std::string name, std::int64_t first = 0)
      : store_(store), name_(std::move(name)), next_(first) {}

  // Two steps, so that what is written can tell its place.
  std::int64_t take() { return store_.add(name_, 1) - 1; }
  void write(std::int64_t place, const std::string& text) { store_.set(key(place), text); }
  void append(const std::string& text) { write(take(), text); }

  std::optional<std::string> at(std::int64_t place) { return store_.find(key(place)); }
  // Calls use(place, text) for what has come since the last time.
  template <typename Use>
  void read(Use use);
  // All before it has been read.
  std::int64_t first_unread() const { return unwritten_.empty() ? next_ : unwritten_.front(); }
  std::int64_t first_unseen() const { return next_; }

 private:
  std::string key(std::int64_t place) const { return name_ + "/" + std::to_string(place); }

  Store& store_;
  const std::string name_;
  std::int64_t next_;
  std::vector<std::int64_t> unwritten_;  // taken, and not yet to be read
};

template <typename Use>
void Series::read(Use use) {
  for (const std::int64_t end = store_.add(name_, 0); next_ < end; ++next_) {
    unwritten_.push_back(next_);
  }
  std::erase_if(unwritten_, [&](std::int64_t place) {
    const std::optional<std::string> text = at(place);
    if (text) use(place, *text);
    return text.has_value();
  });
}

}  // namespace ringcomm
