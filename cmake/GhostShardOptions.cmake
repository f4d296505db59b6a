# Compiler options shared by every target of the project, the accountant built alone included.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers carry time stamps; without the sloppiness ccache would never hit. The base directory lets
  # several checkouts share what they compiled.
  get_filename_component(checkout "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND};-E;env;CCACHE_BASEDIR=${checkout};CCACHE_NOHASHDIR=1"
      "CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime;${CCACHE_PROGRAM}")
endif()

# Warnings and, in the sanitizer presets, instrumentation. -Wno-psabi: GCC's notes on vector arguments.
set(GHOSTSHARD_SANITIZE "" CACHE STRING "Sanitizers, e.g. address,undefined or thread")
function(ghostshard_set_compile_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wno-psabi -Wno-missing-field-initializers -fno-math-errno
    $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  if(GHOSTSHARD_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${GHOSTSHARD_SANITIZE} -fno-omit-frame-pointer -g1)
    # Bounds checks of the standard library's containers; they change no type's layout, so LibTorch need not have them.
    target_compile_definitions(${target} PRIVATE GHOSTSHARD_SANITIZED _GLIBCXX_ASSERTIONS)
    target_link_options(${target} PUBLIC -fsanitize=${GHOSTSHARD_SANITIZE})
  endif()
endfunction()

# Several sources become one for the compiler. Most of the time that a small file takes goes to templates that LibTorch's
# headers ask for, used or not: six files together take a third of it, one that changed twice as long as by itself.
# Sources with flags of their own stay alone. Names in unnamed namespaces must differ within a library, and each file
# still includes what it uses: `make lint` reads the files one by one, with the commands of the preset tidy.
option(GHOSTSHARD_UNITY "Compile six source files at a time" ON)
function(ghostshard_compile_together target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${GHOSTSHARD_UNITY} UNITY_BUILD_MODE BATCH UNITY_BUILD_BATCH_SIZE 6)
endfunction()

# Includes go by path from the root, here and where the project is installed.
function(ghostshard_set_public_headers target)
  target_include_directories(${target} PUBLIC
    "$<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/..>" "$<INSTALL_INTERFACE:include/ghostshard>")
  target_compile_features(${target} PUBLIC cxx_std_20)
endfunction()

# ghostshard_add_library(name [exception ...]) builds the .cpp files of the current folder and of all below it into
# libghostshard_<name>.a. The exceptions are files or folders (with a closing slash), relative to the current folder.
function(ghostshard_add_library name)
  file(GLOB_RECURSE sources RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
  foreach(exception IN LISTS ARGN)
    set(left_out ${sources})
    string(REPLACE "." "\\." pattern "^${exception}")
    list(FILTER left_out INCLUDE REGEX "${pattern}")
    if(NOT left_out)  # a name that moved must not bring its file back in silently
      message(FATAL_ERROR "ghostshard_add_library(${name}): no source is called ${exception}")
    endif()
    list(REMOVE_ITEM sources ${left_out})
  endforeach()
  add_library(ghostshard_${name} STATIC ${sources})
  ghostshard_set_public_headers(ghostshard_${name})
  ghostshard_set_compile_options(ghostshard_${name})
endfunction()
