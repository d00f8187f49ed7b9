# The install tree: one library, its plug-ins beside it, headers that need a C++20 compiler only, and the package config. Everything refers to everything else by relative paths.
include(CMakePackageConfigHelpers)

install(TARGETS portile EXPORT PortileTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT PortileTargets NAMESPACE Portile:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Portile)

# Not the references (they need Kokkos and the plug-in's helpers) nor what libportile keeps to itself.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/core/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/portile/core
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h" PATTERN "queue_state.hpp" EXCLUDE)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/kernels/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/portile/kernels
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*_reference.hpp" EXCLUDE)
install(FILES ${PROJECT_SOURCE_DIR}/include/portile/portile.hpp ${PROJECT_SOURCE_DIR}/include/portile/kokkos.hpp
  ${PROJECT_SOURCE_DIR}/include/portile/dlpack.hpp ${PROJECT_BINARY_DIR}/include/portile/ops.hpp
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/portile)

set(PORTILE_GOLDEN ${CMAKE_INSTALL_DATADIR}/portile/golden)  # installed with the command
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/portile)

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/templates/PortileConfig.cmake.in ${PROJECT_BINARY_DIR}/PortileConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Portile PATH_VARS PORTILE_GOLDEN)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/PortileConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/PortileConfig.cmake ${PROJECT_BINARY_DIR}/PortileConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Portile)
