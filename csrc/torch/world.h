// What the fast path has to know of torch.distributed: whether a group that is called can be.
#pragma once

#include <Python.h>
#include <pybind11/pybind11.h>

#include <string>

namespace ringcomm {

// torch.distributed's container of its groups, which tests replace by ones of their own. What its
// properties return lies somewhere; if that place is known they need not be called.
class World {
 public:
  // The namespace of torch.distributed.distributed_c10d.
  explicit World(const pybind11::dict& names) : names_(names) {
    const pybind11::object world = names["_world"];
    const auto keeps = [&](const Property& property) {
      return pybind11::hasattr(world, property.kept) &&
             attribute(world, property.name).is(attribute(world, property.kept));
    };
    const bool is_known = keeps(default_group_) && keeps(coalesce_state_) &&
                          names.contains(groups_.kept) &&
                          attribute(world, groups_.name).is(pybind11::object(names[groups_.kept]));
    if (is_known) known_type_ = pybind11::type::of(world);
  }

  // The container of now.
  pybind11::object container() const { return find(world_); }

  // The group that is called, the default group if None; null while calls are coalesced.
  pybind11::object group_to_call(const pybind11::object& container, PyObject* group) const {
    const pybind11::object coalescing = get(container, coalesce_state_);
    if (PyObject_IsTrue(coalescing.ptr()) != 0) return {};
    return group == Py_None ? get(container, default_group_)
                            : pybind11::reinterpret_borrow<pybind11::object>(group);
  }

  // Whether the group was made, and not destroyed.
  bool knows(const pybind11::object& container, const pybind11::object& group) const {
    const pybind11::object groups =
        is_known(container) ? find(groups_.kept) : attribute(container, groups_.name);
    const int contains = PySequence_Contains(groups.ptr(), group.ptr());
    if (contains < 0) throw pybind11::error_already_set();
    return contains == 1;
  }

 private:
  // Interned: a name is found by its address.
  static pybind11::str interned(const char* name) {
    return pybind11::reinterpret_steal<pybind11::str>(PyUnicode_InternFromString(name));
  }
  struct Property {
    Property(const char* name, const char* kept) : name(interned(name)), kept(interned(kept)) {}
    pybind11::str name;
    pybind11::str kept;
  };

  static pybind11::object attribute(const pybind11::object& of, const pybind11::str& name) {
    PyObject* const value = PyObject_GetAttr(of.ptr(), name.ptr());
    if (value == nullptr) throw pybind11::error_already_set();
    return pybind11::reinterpret_steal<pybind11::object>(value);
  }
  pybind11::object find(const pybind11::str& name) const {
    PyObject* const value = PyDict_GetItemWithError(names_.ptr(), name.ptr());
    if (value == nullptr) throw pybind11::key_error(std::string(name));
    return pybind11::reinterpret_borrow<pybind11::object>(value);
  }
  bool is_known(const pybind11::object& container) const {
    return reinterpret_cast<PyObject*>(Py_TYPE(container.ptr())) == known_type_.ptr();
  }
  pybind11::object get(const pybind11::object& container, const Property& property) const {
    return attribute(container, is_known(container) ? property.kept : property.name);
  }

  const pybind11::dict names_;
  const pybind11::str world_ = interned("_world");
  const Property default_group_{"default_pg", "_default_pg"};
  const Property coalesce_state_{"pg_coalesce_state", "_pg_coalesce_state"};
  const Property groups_{"pg_map", "_pg_map"};
  pybind11::object known_type_;
};

}  // namespace ringcomm
