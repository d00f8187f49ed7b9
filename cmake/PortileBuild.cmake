# Settings that every target shares, and the functions that define targets.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_INSTALL_RPATH "$ORIGIN;$ORIGIN/../${CMAKE_INSTALL_LIBDIR};$ORIGIN/../lib")
list(REMOVE_DUPLICATES CMAKE_INSTALL_RPATH)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)  # a Kokkos in a folder of its own
# The build tree has the same paths: it is relocatable too, and CMake need not pad them with empty entries, which the loader
# takes for the current folder.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)

# Bit contracts: no contraction, no fast-math; a fused step is written fma(). The only place for such flags.
add_library(portile_flags INTERFACE)
target_include_directories(portile_flags INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/include)
target_compile_options(portile_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off -Wall -Wextra>
  $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false --expt-relaxed-constexpr -Xcompiler=-ffp-contract=off,-Wall,-Wextra>)

# g++ 12 finds overlapping copies in its own std::string.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(portile_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()

set(PORTILE_SANITIZE "" CACHE STRING "Sanitizers of the host code, such as address or undefined")
if(PORTILE_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${PORTILE_SANITIZE}>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer> $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>)
  add_link_options(-fsanitize=${PORTILE_SANITIZE})
endif()

option(PORTILE_FUZZ "Build the fuzzer: clang only" OFF)
if(PORTILE_FUZZ)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()

find_program(PORTILE_CCACHE ccache)
if(PORTILE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${PORTILE_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${PORTILE_CCACHE})
endif()

# System packages first; fetched, pinned, where the system has none.
include(FetchContent)
macro(portile_dependency package version url)  # a macro, so that the package's variables stay visible
  find_package(${package} ${version} QUIET)
  if(${package}_FOUND)
    message(STATUS "portile: ${package} ${${package}_VERSION} of the system")
  else()
    message(STATUS "portile: ${package} not on the system, fetching ${url}")
    FetchContent_Declare(${package} URL ${url} DOWNLOAD_EXTRACT_TIMESTAMP ON)
    FetchContent_MakeAvailable(${package})
  endif()
endmacro()

# Header-only parts of the command and its tests: text formatting, JSON, the command line.
if(PORTILE_TOOLS)
  portile_dependency(fmt "" https://github.com/fmtlib/fmt/releases/download/11.2.0/fmt-11.2.0.zip)
  portile_dependency(nlohmann_json "" https://github.com/nlohmann/json/releases/download/v3.12.0/json.tar.xz)
  portile_dependency(CLI11 "" https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.5.0.tar.gz)
endif()

# A backend plug-in: a module with one exported symbol, named so that the loader finds it.
function(portile_add_backend name)
  add_library(portile_backend_${name} MODULE ${ARGN})
  target_link_libraries(portile_backend_${name} PRIVATE portile_flags portile)
  target_link_options(portile_backend_${name} PRIVATE
    "-Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/plugin.map")
  if(NOT (PORTILE_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang"))  # whose sanitizers live in the program
    target_link_options(portile_backend_${name} PRIVATE -Wl,--no-undefined)
  endif()
  set_target_properties(portile_backend_${name} PROPERTIES LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/plugin.map)
  install(TARGETS portile_backend_${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT backend_${name})
endfunction()

include(${PROJECT_SOURCE_DIR}/kernels/ops.cmake)
list(REMOVE_DUPLICATES PORTILE_OPS)
foreach(op IN LISTS PORTILE_OPS PORTILE_COMPOSITE_OPS)
  string(REPLACE "." ";" parts ${op})
  list(GET parts 0 family)
  list(GET parts 1 name)
  string(APPEND op_includes "#include <portile/kernels/${family}/${name}.hpp>\n")
  string(APPEND op_entries "    make_op_info<${family}::${name}>(),\n")
  if(op IN_LIST PORTILE_COMPOSITE_OPS)
    string(APPEND composite_entries "    make_composition<${family}::${name}>(),\n")
  endif()
endforeach()
configure_file(${PROJECT_SOURCE_DIR}/cmake/templates/composite_list.cpp.in ${PROJECT_BINARY_DIR}/generated/composite_list.cpp @ONLY)
configure_file(${PROJECT_SOURCE_DIR}/cmake/templates/ops.hpp.in ${PROJECT_BINARY_DIR}/include/portile/ops.hpp @ONLY)
configure_file(${PROJECT_SOURCE_DIR}/cmake/templates/op_list.cpp.in ${PROJECT_BINARY_DIR}/generated/op_list.cpp @ONLY)

# Writes the list that names implementation objects, so that a forgotten one is a link error.
#   portile_implementation_list(OUT FILE.cpp NAMESPACE portile::reference OBJECTS quant_cast moe_topk_gate)
function(portile_implementation_list)
  cmake_parse_arguments(A "" "OUT;NAMESPACE" "OBJECTS" ${ARGN})
  set(declarations "")
  set(pointers "")
  set(count 0)
  foreach(object IN LISTS A_OBJECTS)
    string(APPEND declarations "extern const portile_implementation ${object};\n")
    string(APPEND pointers "    &${object},\n")
    math(EXPR count "${count} + 1")
  endforeach()
  if(count EQUAL 0)
    set(pointers "    nullptr,\n")
  endif()
  set(namespace ${A_NAMESPACE})
  configure_file(${PROJECT_SOURCE_DIR}/cmake/templates/implementation_list.cpp.in ${A_OUT} @ONLY)
endfunction()
