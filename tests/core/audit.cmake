# What the libraries export and link, and that each public header compiles alone.
find_package(Python3 COMPONENTS Interpreter QUIET)
if(Python3_FOUND)
  add_test(NAME audit.symbols COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/audit_symbols.py ${PROJECT_BINARY_DIR}/lib)
  add_test(NAME audit.headers COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/audit_headers.py
    ${CMAKE_CXX_COMPILER} ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/include)
endif()
