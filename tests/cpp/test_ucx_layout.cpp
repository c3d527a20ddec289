// What hosts/ucp.h declares is what UCX declares.
#include <ucp/api/ucp.h>

#include <cstddef>
#include <iterator>
#include <type_traits>
#include <utility>

#include "check.h"
#include "hosts/ucp.h"

namespace {

using namespace ringcomm::links::ucp;

#define SAME_FIELD(own, own_field, theirs, their_field)                      \
  static_assert(offsetof(own, own_field) == offsetof(theirs, their_field) && \
                sizeof(std::declval<own&>().own_field) ==                    \
                    sizeof(std::declval<theirs&>().their_field))

SAME_FIELD(Params, field_mask, ucp_params_t, field_mask);
SAME_FIELD(Params, features, ucp_params_t, features);
SAME_FIELD(Params, mt_workers_shared, ucp_params_t, mt_workers_shared);
SAME_FIELD(WorkerParams, field_mask, ucp_worker_params_t, field_mask);
SAME_FIELD(WorkerParams, thread_mode, ucp_worker_params_t, thread_mode);
SAME_FIELD(WorkerAttr, field_mask, ucp_worker_attr_t, field_mask);
SAME_FIELD(WorkerAttr, address, ucp_worker_attr_t, address);
SAME_FIELD(WorkerAttr, address_length, ucp_worker_attr_t, address_length);
SAME_FIELD(EndpointParams, field_mask, ucp_ep_params_t, field_mask);
SAME_FIELD(EndpointParams, address, ucp_ep_params_t, address);
SAME_FIELD(EndpointParams, error_mode, ucp_ep_params_t, err_mode);
SAME_FIELD(EndpointParams, error_handler, ucp_ep_params_t, err_handler);
SAME_FIELD(EndpointParams, error_handler.arg, ucp_ep_params_t, err_handler.arg);
SAME_FIELD(TagRecvInfo, sender_tag, ucp_tag_recv_info_t, sender_tag);
SAME_FIELD(TagRecvInfo, length, ucp_tag_recv_info_t, length);
SAME_FIELD(RequestParam, op_attr_mask, ucp_request_param_t, op_attr_mask);
SAME_FIELD(RequestParam, flags, ucp_request_param_t, flags);
SAME_FIELD(RequestParam, callback.send, ucp_request_param_t, cb.send);
SAME_FIELD(RequestParam, callback.recv, ucp_request_param_t, cb.recv);
SAME_FIELD(RequestParam, user_data, ucp_request_param_t, user_data);
SAME_FIELD(RequestParam, recv_info, ucp_request_param_t, recv_info.tag_info);

static_assert(Params::kFeatures == UCP_PARAM_FIELD_FEATURES);
static_assert(Params::kMtWorkersShared == UCP_PARAM_FIELD_MT_WORKERS_SHARED);
static_assert(Params::kTag == UCP_FEATURE_TAG && Params::kWakeup == UCP_FEATURE_WAKEUP);
static_assert(WorkerParams::kThreadMode == UCP_WORKER_PARAM_FIELD_THREAD_MODE);
static_assert(WorkerParams::kSerialized == UCS_THREAD_MODE_SERIALIZED);
static_assert(WorkerAttr::kAddress == UCP_WORKER_ATTR_FIELD_ADDRESS);
static_assert(EndpointParams::kRemoteAddress == UCP_EP_PARAM_FIELD_REMOTE_ADDRESS);
static_assert(EndpointParams::kErrorMode == UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE);
static_assert(EndpointParams::kErrorHandler == UCP_EP_PARAM_FIELD_ERR_HANDLER);
static_assert(EndpointParams::kPeer == UCP_ERR_HANDLING_MODE_PEER);
static_assert(RequestParam::kCallback == UCP_OP_ATTR_FIELD_CALLBACK);
static_assert(RequestParam::kUserData == UCP_OP_ATTR_FIELD_USER_DATA);
static_assert(RequestParam::kFlags == UCP_OP_ATTR_FIELD_FLAGS);
static_assert(RequestParam::kRecvInfo == UCP_OP_ATTR_FIELD_RECV_INFO);
static_assert(RequestParam::kForce == UCP_EP_CLOSE_FLAG_FORCE);
static_assert(sizeof(Status) == sizeof(ucs_status_t));
static_assert(static_cast<int>(Status::kInProgress) == UCS_INPROGRESS);
static_assert(static_cast<int>(Status::kLast) == UCS_ERR_LAST);

// A function pointer's parameters: how many, and how large each is.
template <typename>
struct Shape;
template <typename Result, typename... Arguments>
struct Shape<Result (*)(Arguments...)> {
  static constexpr std::size_t sizes[] = {
      sizeof(std::conditional_t<std::is_void_v<Result>, char, Result>), sizeof(Arguments)...};
};

template <typename Own, typename Theirs>
constexpr bool same_shape() {
  constexpr auto& own = Shape<Own>::sizes;
  constexpr auto& theirs = Shape<Theirs>::sizes;
  if (std::size(own) != std::size(theirs)) return false;
  for (std::size_t i = 0; i < std::size(own); ++i) {
    if (own[i] != theirs[i]) return false;
  }
  return true;
}

#define SAME_CALL(name) static_assert(same_shape<decltype(Calls::name), decltype(&::ucp_##name)>())

SAME_CALL(get_version);
SAME_CALL(config_read);
SAME_CALL(config_modify);
SAME_CALL(config_release);
SAME_CALL(init_version);
SAME_CALL(worker_create);
SAME_CALL(worker_destroy);
SAME_CALL(worker_query);
SAME_CALL(worker_release_address);
SAME_CALL(worker_progress);
SAME_CALL(worker_get_efd);
SAME_CALL(worker_arm);
SAME_CALL(worker_flush_nbx);
SAME_CALL(ep_create);
SAME_CALL(ep_close_nbx);
SAME_CALL(tag_send_nbx);
SAME_CALL(tag_recv_nbx);
SAME_CALL(request_cancel);
SAME_CALL(request_check_status);
SAME_CALL(request_free);
static_assert(same_shape<decltype(Calls::status_string), decltype(&::ucs_status_string)>());

TEST(statuses_as_pointers) {
  for (const int status : {-1, -16, -99, -100, 0}) {
    void* const pointer = UCS_STATUS_PTR(status);
    CHECK_EQ(failed(pointer), bool(UCS_PTR_IS_ERR(pointer)));
    CHECK_EQ(is_request(pointer), bool(UCS_PTR_IS_PTR(pointer)));
  }
  int something;
  CHECK(is_request(&something) && !failed(&something));
}

}  // namespace
