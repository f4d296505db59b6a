# Writes OUTPUT, a header with the SHA-256 of the library's sources, unless it holds that digest already.
#   cmake -DROOT=... -DOUTPUT=... -P source_digest.cmake
set(sources "")
foreach(folder accountant kernels fsdp dp)
  file(GLOB_RECURSE found RELATIVE "${ROOT}" "${ROOT}/${folder}/*.h" "${ROOT}/${folder}/*.cpp" "${ROOT}/${folder}/*.cu"
    "${ROOT}/${folder}/*.cuh")
  list(APPEND sources ${found})
endforeach()
list(SORT sources)
set(all "")
foreach(source IN LISTS sources)
  file(SHA256 "${ROOT}/${source}" digest)
  string(APPEND all "${source} ${digest}\n")
endforeach()
string(SHA256 digest "${all}")
file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT
  "#pragma once\n\nnamespace ghostshard::dp {\n\ninline constexpr const char* kSourceDigest = \"@digest@\";\n\n}  // namespace ghostshard::dp\n")
