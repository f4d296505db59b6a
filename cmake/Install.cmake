# The library for other projects: `cmake --install build/release --component library --prefix DIR`, and there
#   find_package(GhostShard REQUIRED)
#   target_link_libraries(mine PRIVATE GhostShard::dp)
# with GhostShard_DIR or CMAKE_PREFIX_PATH naming DIR, and Python3_EXECUTABLE a Python that has the torch of this build.
include(CMakePackageConfigHelpers)
foreach(part accountant kernels kernels_host kernels_device fsdp fsdp_device dp torch)
  set_target_properties(ghostshard_${part} PROPERTIES EXPORT_NAME ${part})
  install(TARGETS ghostshard_${part} EXPORT GhostShardTargets ARCHIVE DESTINATION lib COMPONENT library)
endforeach()
set(package lib/cmake/GhostShard)
install(EXPORT GhostShardTargets NAMESPACE GhostShard:: DESTINATION ${package} COMPONENT library)
foreach(folder accountant kernels fsdp dp)
  install(DIRECTORY ${folder} DESTINATION include/ghostshard COMPONENT library FILES_MATCHING PATTERN "*.h")
endforeach()
ghostshard_torch_version(GHOSTSHARD_TORCH_VERSION)
configure_package_config_file(cmake/GhostShardConfig.cmake.in "${CMAKE_BINARY_DIR}/GhostShardConfig.cmake"
  INSTALL_DESTINATION ${package})
write_basic_package_version_file("${CMAKE_BINARY_DIR}/GhostShardConfigVersion.cmake" COMPATIBILITY ExactVersion)
install(FILES "${CMAKE_BINARY_DIR}/GhostShardConfig.cmake" "${CMAKE_BINARY_DIR}/GhostShardConfigVersion.cmake"
  cmake/TorchTarget.cmake DESTINATION ${package} COMPONENT library)
