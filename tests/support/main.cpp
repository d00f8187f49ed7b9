// The program's main for Catch2 v2; Catch2 v3 brings its own.
#define CATCH_CONFIG_MAIN
#include "support/catch.hpp"
