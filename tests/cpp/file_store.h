// A rendezvous store of processes: a file for each key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "setup/store.h"

namespace ranks {

class FileStore : public ringcomm::Store {
 public:
  explicit FileStore(std::filesystem::path folder);
  ~FileStore() override;

  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> find(const std::string& key) override;
  std::string set_once(const std::string& key, const std::string& value) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;

 private:
  std::filesystem::path path(std::string key) const;

  const std::filesystem::path folder_;
};

}  // namespace ranks
