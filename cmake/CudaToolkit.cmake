# CUDA for the preset cuda: the compiler, the architectures, and the flags of device code. The build needs no GPU;
# devices newer than the listed architectures use the PTX of the last one.
if(NOT CMAKE_CUDA_COMPILER)
  find_program(nvcc nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATH_SUFFIXES bin PATHS /usr/local/cuda/bin NO_CACHE)
  if(NOT nvcc)
    message(FATAL_ERROR "GHOSTSHARD_CUDA needs the CUDA toolkit: no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda. "
                        "The other presets need none")
  endif()
  set(CMAKE_CUDA_COMPILER "${nvcc}")
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # LibTorch's: two runtimes in a process do not know each other's streams
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

# LibTorch's CUDA half out of the same wheel.
add_library(ghostshard_torch_cuda INTERFACE)
target_link_libraries(ghostshard_torch_cuda INTERFACE ghostshard_torch
  "${GHOSTSHARD_TORCH_DIR}/lib/libtorch_cuda.so" "${GHOSTSHARD_TORCH_DIR}/lib/libc10_cuda.so" CUDA::cudart)

# nvcc 13.0 says of inline kernels that it ignores the word (20050), and yet needs it to link those that two files share.
function(ghostshard_set_cuda_options target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Werror=all-warnings;-diag-suppress=20050;-Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers>
    $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow>)
endfunction()
