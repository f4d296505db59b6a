# LibTorch out of the PyPI wheel, without a CUDA toolkit; for this project, and for those that find its package.
# The wheel's own find_package(Torch) insists on finding CUDA; the libraries themselves do not need it at link
# time. So the target is filled in here, with headers, libtorch_cpu, libc10 and an rpath; the CUDA libraries' symbols are
# left to the dynamic loader.

# Sets GHOSTSHARD_TORCH_DIR, unless it is given, to the folder of the torch package of Python3_EXECUTABLE.
macro(ghostshard_find_torch)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  if(NOT GHOSTSHARD_TORCH_DIR)
    execute_process(
      COMMAND "${Python3_EXECUTABLE}" -c
              "import importlib.util as u, os; print(os.path.dirname(u.find_spec('torch').origin))"
      OUTPUT_VARIABLE torch_dir OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE rc ERROR_QUIET)
    if(NOT rc EQUAL 0)
      message(FATAL_ERROR "No torch in ${Python3_EXECUTABLE}: set Python3_EXECUTABLE or GHOSTSHARD_TORCH_DIR (in this "
                          "repository, run `make setup` first)")
    endif()
    set(GHOSTSHARD_TORCH_DIR "${torch_dir}" CACHE PATH "The installed torch package")
  endif()
endmacro()

# Sets the variable to that package's version, without the part after "+".
function(ghostshard_torch_version variable)
  file(STRINGS "${GHOSTSHARD_TORCH_DIR}/version.py" line REGEX "^__version__ = " LIMIT_COUNT 1)
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" version "${line}")
  set(${variable} "${version}" PARENT_SCOPE)
endfunction()

function(ghostshard_use_torch target)
  target_include_directories(${target} SYSTEM INTERFACE
    "${GHOSTSHARD_TORCH_DIR}/include" "${GHOSTSHARD_TORCH_DIR}/include/torch/csrc/api/include")
  target_compile_definitions(${target} INTERFACE _GLIBCXX_USE_CXX11_ABI=1 USE_DISTRIBUTED USE_C10D_GLOO)
  # The wheel carries its own OpenMP runtime; naming it here keeps a second one out of the process.
  target_link_options(${target} INTERFACE
    "LINKER:--allow-shlib-undefined" "LINKER:-rpath,${GHOSTSHARD_TORCH_DIR}/lib" "LINKER:--no-as-needed")
  target_link_directories(${target} INTERFACE "${GHOSTSHARD_TORCH_DIR}/lib")
  target_link_libraries(${target} INTERFACE
    "${GHOSTSHARD_TORCH_DIR}/lib/libtorch_cpu.so" "${GHOSTSHARD_TORCH_DIR}/lib/libc10.so" pthread)
endfunction()
