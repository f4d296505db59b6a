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

# One precompiled header for all targets that use torch: parsing LibTorch takes some ten seconds a file, making the
# header half a minute. Every target compiles as position-independent code, executables too, because GCC refuses a
# header made with -fPIC where it compiles with -fPIE.
# Not file(WRITE): its new time would have everything compiled again after each configuration.
file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/precompiled/empty.cpp" CONTENT "")
add_library(ghostshard_precompiled OBJECT EXCLUDE_FROM_ALL "${CMAKE_BINARY_DIR}/precompiled/empty.cpp")
target_link_libraries(ghostshard_precompiled PRIVATE ghostshard_torch)
ghostshard_set_compile_options(ghostshard_precompiled)
set(GHOSTSHARD_PRECOMPILED
  <torch/types.h> <torch/csrc/autograd/custom_function.h> <ATen/ATen.h>
  <algorithm> <array> <cmath> <cstdint> <filesystem> <functional> <map> <memory> <optional> <span> <sstream>
  <string> <vector>)
target_precompile_headers(ghostshard_precompiled PRIVATE ${GHOSTSHARD_PRECOMPILED})

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
