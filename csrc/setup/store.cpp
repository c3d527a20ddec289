#include "setup/store.h"

#include <future>

#include "core/status.h"
#include "core/thread.h"

namespace ringcomm {

template <typename Answer>
Answer PatientStore::ask(const std::string& key, std::function<Answer(Store&)> question) {
  const auto silence = [&] {
    return Error(ErrorKind::kSystem, "the group's store has not answered for " +
                                         describe_seconds(patience_.count() / 1e3) +
                                         ", asked for \"" + key +
                                         "\": is the host where it lives cut off from this one?");
  };
  if (is_silent_) throw silence();
  std::future<Answer> answer =
      run_detached([store = store_, question = std::move(question)] { return question(*store); });
  if (answer.wait_for(patience_) != std::future_status::ready) {
    is_silent_ = true;
    throw silence();
  }
  return answer.get();
}

void PatientStore::set(const std::string& key, const std::string& value) {
  ask<void>(key, [=](Store& store) { store.set(key, value); });
}

std::optional<std::string> PatientStore::find(const std::string& key) {
  return ask<std::optional<std::string>>(key, [=](Store& store) { return store.find(key); });
}

std::string PatientStore::set_once(const std::string& key, const std::string& value) {
  return ask<std::string>(key, [=](Store& store) { return store.set_once(key, value); });
}

std::int64_t PatientStore::add(const std::string& key, std::int64_t amount) {
  return ask<std::int64_t>(key, [=](Store& store) { return store.add(key, amount); });
}

bool PatientStore::has(const std::string& key) {
  return ask<bool>(key, [=](Store& store) { return store.has(key); });
}

bool PatientStore::erase(const std::string& key) {
  return ask<bool>(key, [=](Store& store) { return store.erase(key); });
}

}  // namespace ringcomm
