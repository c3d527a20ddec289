// What the fast path has to know of torch.distributed: whether a group that is called can be.
#pragma once

#include <pybind11/pybind11.h>

namespace ringcomm {

// torch.distributed's container of its groups, which tests replace by ones of their own. What its
// properties return lies somewhere; if that place is known they need not be called.
class World {
 public:
  // The namespace of torch.distributed.distributed_c10d.
  explicit World(const pybind11::dict& names);

  // The container of now.
  pybind11::object container() const;
  // The group that is called, the default group if None; null while calls are coalesced.
  pybind11::object group_to_call(const pybind11::object& container, PyObject* group) const;
  // Whether the group was made, and not destroyed.
  bool knows(const pybind11::object& container, const pybind11::object& group) const;

 private:
  struct Property {
    Property(const char* name, const char* kept);
    pybind11::str name;
    pybind11::str kept;
  };

  PyObject* find(const pybind11::str& name) const;
  bool is_known(const pybind11::object& container) const;
  pybind11::object get(const pybind11::object& container, const Property& property) const;

  const pybind11::dict names_;
  const pybind11::str world_;
  const Property default_group_{"default_pg", "_default_pg"};
  const Property coalesce_state_{"pg_coalesce_state", "_pg_coalesce_state"};
  const Property groups_{"pg_map", "_pg_map"};
  pybind11::object known_type_;
};

}  // namespace ringcomm
