# portile_kokkos: the Kokkos of the system, or a fetched one.
portile_dependency(Kokkos "" https://github.com/kokkos/kokkos/releases/download/4.7.01/kokkos-4.7.01.tar.gz)
if(TARGET portile_kokkos)  # the imported targets above are per folder, this one is per build
  return()
endif()
add_library(portile_kokkos INTERFACE)

# The Kokkos inside Debian 12's Trilinos exports include folders that do not exist: link its library by hand.
if(Kokkos_DIR AND EXISTS "${Kokkos_DIR}/../KokkosCore/KokkosCoreConfig.cmake")
  find_path(PORTILE_KOKKOS_INCLUDE Kokkos_Core.hpp PATH_SUFFIXES trilinos kokkos REQUIRED)
  find_library(PORTILE_KOKKOS_LIBRARY NAMES trilinos_kokkoscore kokkoscore REQUIRED)
  message(STATUS "portile: using the Kokkos inside Trilinos: ${PORTILE_KOKKOS_LIBRARY}")
  target_include_directories(portile_kokkos SYSTEM INTERFACE ${PORTILE_KOKKOS_INCLUDE})
  target_link_libraries(portile_kokkos INTERFACE ${PORTILE_KOKKOS_LIBRARY} ${CMAKE_DL_LIBS})
else()
  target_link_libraries(portile_kokkos INTERFACE Kokkos::kokkos)
endif()
