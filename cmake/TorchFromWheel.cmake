# LibTorch out of the PyPI wheel, without a CUDA toolkit.
# The wheel's own find_package(Torch) insists on finding CUDA; the libraries themselves do not need it at link
# time. So the target is defined here, with headers, libtorch_cpu, libc10 and an rpath; the CUDA libraries' symbols are
# left to the dynamic loader.
if(NOT Python3_EXECUTABLE AND EXISTS "${CMAKE_SOURCE_DIR}/.venv/bin/python")
  set(Python3_EXECUTABLE "${CMAKE_SOURCE_DIR}/.venv/bin/python")
endif()
find_package(Python3 REQUIRED COMPONENTS Interpreter)
if(NOT GHOSTSHARD_TORCH_DIR)
  execute_process(
    COMMAND "${Python3_EXECUTABLE}" -c
            "import importlib.util as u, os; print(os.path.dirname(u.find_spec('torch').origin))"
    OUTPUT_VARIABLE torch_dir OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE rc)
  if(NOT rc EQUAL 0)
    message(FATAL_ERROR "No torch in ${Python3_EXECUTABLE}: run `make setup` first")
  endif()
  set(GHOSTSHARD_TORCH_DIR "${torch_dir}" CACHE PATH "The installed torch package")
endif()

find_path(GLOO_INCLUDE_DIR gloo/algorithm.h REQUIRED)

add_library(ghostshard_torch INTERFACE)
target_include_directories(ghostshard_torch SYSTEM INTERFACE
  "${GHOSTSHARD_TORCH_DIR}/include" "${GHOSTSHARD_TORCH_DIR}/include/torch/csrc/api/include")
target_compile_definitions(ghostshard_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1 USE_DISTRIBUTED USE_C10D_GLOO)
# The wheel carries its own OpenMP runtime; naming it here keeps a second one out of the process.
target_link_options(ghostshard_torch INTERFACE
  "LINKER:--allow-shlib-undefined" "LINKER:-rpath,${GHOSTSHARD_TORCH_DIR}/lib" "LINKER:--no-as-needed")
target_link_libraries(ghostshard_torch INTERFACE
  "${GHOSTSHARD_TORCH_DIR}/lib/libtorch_cpu.so" "${GHOSTSHARD_TORCH_DIR}/lib/libc10.so" pthread)
link_directories("${GHOSTSHARD_TORCH_DIR}/lib")

# One precompiled header for all targets that use torch: parsing LibTorch takes some ten seconds a file, making the
# header half a minute. Every target compiles as position-independent code, executables too, because GCC refuses a
# header made with -fPIC where it compiles with -fPIE.
file(WRITE "${CMAKE_BINARY_DIR}/precompiled/empty.cpp" "")
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
