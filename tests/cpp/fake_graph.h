// CUDA's graphs, played by the host: what is captured from streams, and runs on as many threads as
// streams were captured. Of the rules of captures, those are checked that our calls could break:
// events of the world outside are external, and all streams join the first one in the end.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

namespace fake {

struct EventState;
struct UserObject;

extern std::atomic<int> num_launches;

// What was captured, and all that can be done with it.
class Graph : public std::enable_shared_from_this<Graph> {
 public:
  Graph();
  ~Graph();

  // Everything below while it is being captured.
  const unsigned long long id;
  bool active = true;
  std::set<cudaStream_t> streams;

  int add(cudaStream_t stream, std::function<void()> body);
  int add_wait(cudaStream_t stream, int node);
  int add_external_record(cudaStream_t stream, std::shared_ptr<EventState> event);
  int add_external_wait(cudaStream_t stream, std::shared_ptr<EventState> event);
  void retain(UserObject* object);
  void on_end(std::function<void()> forget);
  // Whether everything comes before the end of `stream`.
  bool is_joined(cudaStream_t stream) const;

  // Later.
  void launch(cudaStream_t stream);

 private:
  struct Node {
    std::function<void(int number)> body = nullptr;
    std::function<int()> prepare = nullptr;  // when the graph is launched
    int after = -1;                          // a node of another stream
    int previous = -1;                       // in its own
    cudaStream_t stream = nullptr;
  };

  int add(cudaStream_t stream, Node node);
  int last_of(cudaStream_t stream) const;

  std::vector<Node> nodes_;
  std::map<cudaStream_t, int> last_;
  std::vector<UserObject*> objects_;
  std::vector<std::function<void()>> on_end_;
};

std::shared_ptr<Graph> begin_capture(cudaStream_t stream);
// False where CUDA would refuse: something captured does not come before the end of `stream`.
bool end_capture(const std::shared_ptr<Graph>& graph, cudaStream_t stream);

}  // namespace fake
