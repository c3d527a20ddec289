// Mail boxes between hosts.
//
// A mail box is shared by two ranks (shm/mail.h). If they are on different hosts, each has one in
// the memory of its own host, and the two are kept alike: slots that the sender has written travel
// to the receiver's box, right into their place there; what the receiver has read or refused, and
// where the sender has given up, travel as acknowledgements. So what a message is, and what becomes
// of it, is the same everywhere, and only this page knows of two boxes.
//
//     sender's host                            receiver's host
//     box  posted = 7    ----- slot 6 ----->   box  posted = 7
//          taken  = 5    <---- ack ---------        taken  = 5
//
// Invariant: a slot is sent once it has been posted, and its receive is posted only when the slot
// before it in the same place has been read; acknowledgements only grow, so the last one counts.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "hosts/engine.h"
#include "hosts/streams.h"
#include "shm/remote_hosts.h"

namespace ringcomm::hosts {

class LinkedMailbox final : public RemoteMailbox {
 public:
  // The group must span hosts.
  LinkedMailbox(Group& group, links::Engine& links) : group_(group), links_(links) {}
  ~LinkedMailbox() override;
  LinkedMailbox(const LinkedMailbox&) = delete;
  LinkedMailbox& operator=(const LinkedMailbox&) = delete;

  void open(int peer) override;
  bool step() override;
  bool is_empty() const override;

 private:
  // What a rank reports as the receiver of one box, and as the sender of the other: of the latter
  // only if a message has been refused there, since then its slots may end before it does.
  struct Ack {
    std::uint64_t taken, refused, wanted_count;
    UsersDType wanted_users;
    DType wanted_dtype;
    Reason wanted_none;
    std::uint64_t posted, ended;

    bool operator==(const Ack&) const = default;
  };

  struct PeerLink {
    std::uint64_t sent = 0;      // slots
    std::uint64_t expected = 0;  // slots that receives have been posted for
    std::uint64_t came = 0;
    links::Request sending[kMailSlots], receiving[kMailSlots];
    Ack last_sent{}, sending_ack{}, last_received{}, receiving_ack{};
    std::uint64_t acks_sent = 0, acks_awaited = 0, acks_received = 0;
    links::Request send_request, receive_request;
  };

  void send_slots(int peer, PeerLink& link);
  bool take_slots(int peer, PeerLink& link);
  void send_ack(int peer, PeerLink& link);
  // Takes the acknowledgement that has come, if one has, and awaits the next.
  bool receive_ack(int peer, PeerLink& link);
  void take_ack(int peer, PeerLink& link);
  Ack ack_for(int peer) const;

  Group& group_;
  links::Engine& links_;
  std::map<int, std::unique_ptr<PeerLink>> peers_;  // by peer
};

}  // namespace ringcomm::hosts
