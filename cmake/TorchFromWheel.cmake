# LibTorch for this build, and the headers that its targets share.
include(TorchTarget)
if(NOT Python3_EXECUTABLE AND EXISTS "${CMAKE_SOURCE_DIR}/.venv/bin/python")
  set(Python3_EXECUTABLE "${CMAKE_SOURCE_DIR}/.venv/bin/python")
endif()
ghostshard_find_torch()
find_path(GLOO_INCLUDE_DIR gloo/algorithm.h REQUIRED)

# Installed, the target is empty: who finds the package has a torch of their own (GhostShardConfig.cmake.in).
add_library(ghostshard_torch_here INTERFACE)
ghostshard_use_torch(ghostshard_torch_here)
add_library(ghostshard_torch INTERFACE)
target_link_libraries(ghostshard_torch INTERFACE "$<BUILD_INTERFACE:ghostshard_torch_here>")
link_directories("${GHOSTSHARD_TORCH_DIR}/lib")

set(GHOSTSHARD_PRECOMPILED
  <torch/types.h> <torch/csrc/autograd/custom_function.h> <ATen/ATen.h>
  <algorithm> <array> <cmath> <cstdint> <filesystem> <functional> <map> <memory> <optional> <span> <sstream>
  <string> <vector>)
add_subdirectory(cmake/precompiled precompiled)

# ghostshard_use_torch_pch(target [owner]): another owner's header than the one above is used by tests.
function(ghostshard_use_torch_pch target)
  set(owner ghostshard_precompiled ${ARGN})
  list(GET owner -1 owner)
  target_precompile_headers(${target} REUSE_FROM ${owner})
  get_target_property(type ${target} TYPE)
  if(type STREQUAL EXECUTABLE)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
endfunction()
