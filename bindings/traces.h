// For engine_module.cpp: which operations a forward runs (dp/recording/operations.h).
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "dp/recording/operations.h"

namespace ghostshard::dp {

inline void define_traces(pybind11::module_& module) {
  namespace py = pybind11;
  py::class_<Trace>(module, "Trace").def("more_than", &Trace::more_than, py::arg("other"), py::arg("of_units"));
  module.def("begin_trace", &begin_trace);
  module.def("end_trace", &end_trace, py::arg("number"));
  module.def("leave_out", &leave_out, py::arg("stands_for"));
  module.def("go_on", &go_on);
  py::class_<KnownTraces>(module, "KnownTraces")
      .def(py::init<>())
      .def("__contains__", &KnownTraces::knows, py::arg("trace"))
      .def("add", &KnownTraces::add, py::arg("trace"));
}

}  // namespace ghostshard::dp
