#include "calls.h"

#include <string>

namespace ringcomm {

Call make_call(Collective collective, std::size_t count, DType dtype, Algorithm algorithm) {
  Call call;
  call.collective = collective;
  call.count = count;
  call.dtype = dtype;
  call.algorithm = static_cast<std::uint8_t>(algorithm);
  return call;
}

Call make_call(Collective collective, std::size_t count, const Reduce& reduce,
               Algorithm algorithm) {
  Call call = make_call(collective, count, reduce.dtype, algorithm);
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
