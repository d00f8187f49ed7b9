# Tests that use Kokkos themselves: header portile/kokkos.hpp, and who initialises Kokkos when.
include(PortileKokkos)

add_executable(portile_kokkos_program programs/kokkos_program.cpp)
target_link_libraries(portile_kokkos_program PRIVATE portile portile_flags portile_kokkos Threads::Threads)

add_executable(portile_test_kokkos kokkos_view_test.cpp kokkos_order_test.cpp)
target_link_libraries(portile_test_kokkos PRIVATE portile_test_support portile_kokkos)
add_dependencies(portile_test_kokkos portile_kokkos_program portile_backend_reference)
add_test(NAME kokkos COMMAND portile_test_kokkos)
set_tests_properties(kokkos PROPERTIES SKIP_RETURN_CODE 77)

# A second copy of the Kokkos library under another name in the same process.
find_program(PORTILE_PATCHELF patchelf)
if(TARGET Kokkos::kokkoscore)
  set(library $<TARGET_FILE:Kokkos::kokkoscore>)
elseif(PORTILE_KOKKOS_LIBRARY)
  set(library ${PORTILE_KOKKOS_LIBRARY})
endif()
if(PORTILE_PATCHELF AND library)
  set(second ${PROJECT_BINARY_DIR}/tests/second/libsecond_kokkoscore.so)
  add_custom_command(OUTPUT ${second}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/tests/second
    COMMAND ${CMAKE_COMMAND} -E copy ${library} ${second}
    COMMAND ${PORTILE_PATCHELF} --set-soname libsecond_kokkoscore.so ${second}
    VERBATIM)
  add_custom_target(portile_second_kokkos DEPENDS ${second})
  # Compiled like users of the first copy, linked against the second.
  add_executable(portile_second_kokkos_program programs/kokkos_program.cpp)
  add_library(portile_second_kokkos_user MODULE programs/second_kokkos_user.cpp)
  foreach(target portile_second_kokkos_program portile_second_kokkos_user)
    target_link_libraries(${target} PRIVATE portile_flags ${second} ${CMAKE_DL_LIBS} Threads::Threads)
    target_include_directories(${target} SYSTEM PRIVATE $<TARGET_PROPERTY:portile_kokkos,INTERFACE_INCLUDE_DIRECTORIES>)
    if(TARGET Kokkos::kokkoscore)
      target_include_directories(${target} SYSTEM PRIVATE $<TARGET_PROPERTY:Kokkos::kokkoscore,INTERFACE_INCLUDE_DIRECTORIES>)
      target_compile_options(${target} PRIVATE $<TARGET_PROPERTY:Kokkos::kokkoscore,INTERFACE_COMPILE_OPTIONS>)
    endif()
    set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/../lib;$ORIGIN/../tests/second")
    add_dependencies(${target} portile_second_kokkos)
  endforeach()
  target_link_libraries(portile_second_kokkos_program PRIVATE portile)
  set_target_properties(portile_second_kokkos_user PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/second)
  add_executable(portile_second_kokkos_loader programs/second_kokkos_loader.cpp)
  target_link_libraries(portile_second_kokkos_loader PRIVATE portile portile_flags ${CMAKE_DL_LIBS})
  target_compile_definitions(portile_test_kokkos PRIVATE PORTILE_SECOND_KOKKOS=1)
  add_dependencies(portile_test_kokkos portile_second_kokkos_program portile_second_kokkos_user portile_second_kokkos_loader)
else()
  message(STATUS "portile: no patchelf or no Kokkos library file: the second Kokkos copy is not tested")
endif()
