#include "torch/world.h"

#include <Python.h>

#include <string>

namespace py = pybind11;

namespace ringcomm {
namespace {

// Interned: a name is found by its address.
py::str interned(const char* name) {
  return py::reinterpret_steal<py::str>(PyUnicode_InternFromString(name));
}

py::object attribute(PyObject* of, const py::str& name) {
  PyObject* const value = PyObject_GetAttr(of, name.ptr());
  if (value == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(value);
}

}  // namespace

World::Property::Property(const char* name, const char* kept)
    : name(interned(name)), kept(interned(kept)) {}

World::World(const py::dict& names) : names_(names), world_(interned("_world")) {
  const py::object world = names["_world"];
  const auto keeps = [&](const Property& property) {
    return py::hasattr(world, property.kept) &&
           attribute(world.ptr(), property.name).is(attribute(world.ptr(), property.kept));
  };
  const bool is_known = keeps(default_group_) && keeps(coalesce_state_) &&
                        names.contains(groups_.kept) &&
                        attribute(world.ptr(), groups_.name).is(py::object(names[groups_.kept]));
  if (is_known) known_type_ = py::type::of(world);
}

py::object World::container() const { return py::reinterpret_borrow<py::object>(find(world_)); }

py::object World::group_to_call(const py::object& container, PyObject* group) const {
  const py::object coalescing = get(container, coalesce_state_);
  if (PyObject_IsTrue(coalescing.ptr()) != 0) return {};
  return group == Py_None ? get(container, default_group_)
                          : py::reinterpret_borrow<py::object>(group);
}

bool World::knows(const py::object& container, const py::object& group) const {
  const py::object groups = is_known(container)
                                ? py::reinterpret_borrow<py::object>(find(groups_.kept))
                                : attribute(container.ptr(), groups_.name);
  const int contains = PySequence_Contains(groups.ptr(), group.ptr());
  if (contains < 0) throw py::error_already_set();
  return contains == 1;
}

PyObject* World::find(const py::str& name) const {
  PyObject* const value = PyDict_GetItemWithError(names_.ptr(), name.ptr());
  if (value == nullptr) throw py::key_error(std::string(name));
  return value;
}

bool World::is_known(const py::object& container) const {
  return reinterpret_cast<PyObject*>(Py_TYPE(container.ptr())) == known_type_.ptr();
}

py::object World::get(const py::object& container, const Property& property) const {
  return attribute(container.ptr(), is_known(container) ? property.kept : property.name);
}

}  // namespace ringcomm
