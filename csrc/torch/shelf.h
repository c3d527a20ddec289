// Where tensors wait for the end of what a device does with them.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "nccl/ends.h"

namespace ringcomm {

// What a work that nobody has waited for was holding. (c10's recordStream is for streams that live
// as long as the process; a group's own go with it.)
class Shelf {
 public:
  void keep(std::vector<at::Tensor> tensors, std::shared_ptr<const nccl::End> end) {
    std::lock_guard lock(mutex_);
    kept_.push_back({std::move(tensors), std::move(end)});
  }

  // Lets go of what is done. What was captured stays until the group ends: nobody can tell.
  void sweep() {
    std::vector<Kept> done;  // freed without the lock, as tensors may run Python's finalisers
    std::lock_guard lock(mutex_);
    std::erase_if(kept_, [&done](Kept& kept) {
      if (!kept.end->happened()) return false;
      done.push_back(std::move(kept));
      return true;
    });
  }

 private:
  struct Kept {
    std::vector<at::Tensor> tensors;
    std::shared_ptr<const nccl::End> end;
  };
  std::mutex mutex_;
  std::vector<Kept> kept_;
};

}  // namespace ringcomm
