// What the set-up of a group needs from a rendezvous store, and two things made of one: a list, and
// a store whose calls end. c10d's stores are adapted to it in torch/.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/status.h"
#include "core/thread.h"

namespace ringcomm {

// Keeps what was set until it is erased: also what earlier groups, or earlier attempts at this one,
// have left. All methods return at once, and throw Error (kSystem) when the store does not answer.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Must not be called while another rank may erase the key: some stores look first and read then,
  // and wait for what has gone in between. has() may be asked at any time.
  virtual std::optional<std::string> find(const std::string& key) = 0;
  virtual bool has(const std::string& key) { return find(key).has_value(); }
  // Sets it if nothing was set yet; returns what stands there then, for good: keys that are set so
  // are not set otherwise.
  virtual std::string set_once(const std::string& key, const std::string& value) = 0;
  // Adds to a counter, which is 0 at first, and returns what it is then.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;
  // A counter begins at 0 again. False: this store erases nothing.
  virtual bool erase(const std::string&) { return false; }
};

// A list in a store, to which any rank may add: a counter of the places that are taken, and what
// stands in each. Nothing in it is ever changed.
class Series {
 public:
  // Reads begin at that place.
  Series(Store& store, std::string name, std::int64_t first = 0)
      : store_(store), name_(std::move(name)), next_(first) {}

  // Two steps, so that what is written can contain its place.
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

// A store that may never answer, such as one on a host that was cut off: a call to it waits for the
// network, and nothing ends it. Here it waits on a thread of its own, which is left behind.
class PatientStore : public Store {
 public:
  // Every call ends after that time, by Error (kSystem), and all later ones at once.
  PatientStore(std::shared_ptr<Store> store, std::chrono::milliseconds patience)
      : store_(std::move(store)), patience_(patience) {}

  void set(const std::string& key, const std::string& value) override {
    ask(key, [=](Store& store) { store.set(key, value); });
  }
  std::optional<std::string> find(const std::string& key) override {
    return ask(key, [=](Store& store) { return store.find(key); });
  }
  std::string set_once(const std::string& key, const std::string& value) override {
    return ask(key, [=](Store& store) { return store.set_once(key, value); });
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return ask(key, [=](Store& store) { return store.add(key, amount); });
  }
  bool has(const std::string& key) override {
    return ask(key, [=](Store& store) { return store.has(key); });
  }
  bool erase(const std::string& key) override {
    return ask(key, [=](Store& store) { return store.erase(key); });
  }

 private:
  // The question may outlive this store, so it must hold what it needs.
  template <typename Question>
  std::invoke_result_t<Question, Store&> ask(const std::string& key, Question question) {
    const auto silence = [&] {
      return Error(ErrorKind::kSystem, "the group's store has not answered for " +
                                           describe_seconds(patience_.count() / 1e3) +
                                           ", asked for \"" + key +
                                           "\": is the host where it lives cut off from this one?");
    };
    if (is_silent_) throw silence();
    auto answer = run_detached([store = store_, question] { return question(*store); });
    if (answer.wait_for(patience_) != std::future_status::ready) {
      is_silent_ = true;
      throw silence();
    }
    return answer.get();
  }

  const std::shared_ptr<Store> store_;
  const std::chrono::milliseconds patience_;
  std::atomic<bool> is_silent_{false};
};

}  // namespace ringcomm
