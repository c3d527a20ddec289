#include "torch/backend_setup.h"

#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "hosts/address.h"
#include "hosts/linked_hosts.h"
#include "setup/store.h"
#include "torch/links.h"
#include "torch/store_adapter.h"

namespace ringcomm {
namespace {

// A busy store answers late, one that is cut off never. TCP takes as long again as a cut has taken.
constexpr std::chrono::seconds kLeastPatience{5}, kMostPatience{60};

}  // namespace

GroupConfig group_config(int rank, int world_size, const RingBackend::Options& options) {
  GroupConfig config{
      .rank = rank,
      .world_size = world_size,
      .timeout = options.timeout,
      .members = {.group = options.group_name, .global_ranks = options.global_ranks_in_group},
      .host = options.host,
      .engines = [wanted = options.links] { return engines_for(wanted); },
      .heartbeat_timeout = options.heartbeat_timeout};
  if (const std::shared_ptr<Communicator> relative = options.relative.lock()) {
    config.gone = [relative, members = config.members](int r, std::string* how) {
      const auto in_relative =
          relative->group().members.find(members.global(r), relative->world_size());
      return in_relative && relative->group().gone(*in_relative, how);
    };
  }
  return config;
}

std::shared_ptr<Communicator> make_communicator(Store& store, GroupConfig config,
                                                const c10::intrusive_ptr<c10d::Store>& links_store,
                                                const RingBackend::Options& options) {
  const auto store_of = [&](const std::string& meeting) {
    return std::make_shared<C10dStore>(
        c10::make_intrusive<c10d::PrefixStore>("links " + meeting, links_store));
  };
  const auto make_links = [&](const std::string& engine, const std::string& meeting, int rank,
                              int world_size) {
    return make_engine(agreed(engine, options.links), store_of(meeting), rank, world_size);
  };
  config.decline = [&, rank = config.rank](const std::string& meeting, const std::string& why) {
    links::publish_failure(*store_of(meeting), rank, why);
  };
  return std::make_shared<Communicator>(store, config, options.selection,
                                        hosts::connect(make_links));
}

std::chrono::milliseconds store_patience(std::chrono::milliseconds timeout) {
  return std::clamp<std::chrono::milliseconds>(timeout, kLeastPatience, kMostPatience);
}

void check_store_answers(const c10::intrusive_ptr<c10d::Store>& store,
                         std::chrono::milliseconds patience) {
  try {
    PatientStore(std::make_shared<C10dStore>(store), patience).find("answers");
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kSystem,
                "the group's store does not answer: it may have lived in a rank that is gone. "
                "Without it the living cannot meet; all ranks must begin anew. Let the store live "
                "in a process that outlives the ranks, such as the one that starts them "
                "(torchrun's store does). The store's error: " +
                    std::string(error.what()));
  }
}

}  // namespace ringcomm
