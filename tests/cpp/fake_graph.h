// CUDA's graphs, played by the host: what is captured from streams, and runs on as many threads as
// streams were captured. Those rules of captures are checked that our calls could break:
// events of the world outside are external, all streams join the first one in the end, and nothing
// unsafe is called meanwhile.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

namespace fake {

struct EventState;
struct UserObject;

// What was captured, and all that can be done with it.
class Graph : public std::enable_shared_from_this<Graph> {
 public:
  explicit Graph(cudaStreamCaptureMode mode);
  ~Graph();

  // Everything below while it is being captured.
  const unsigned long long id;
  const cudaStreamCaptureMode mode;
  const std::thread::id thread = std::this_thread::get_id();  // that captures it
  bool active = true;
  bool invalidated = false;  // by a call that is illegal meanwhile
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

std::shared_ptr<Graph> begin_capture(cudaStream_t stream,
                                     cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal);
// Whether a call that is unsafe during captures, such as a question about an event, is illegal on
// this thread now. If so, the captures that forbid it can no longer be ended.
bool is_forbidden_by_captures();
// False where CUDA would refuse: something captured does not come before the end of `stream`.
bool end_capture(const std::shared_ptr<Graph>& graph, cudaStream_t stream);

}  // namespace fake
