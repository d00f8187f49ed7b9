#pragma once

// Catch2 in either of its layouts. Tests keep to what v2 and v3 have in common; main comes from the build.

#if __has_include(<catch2/catch_test_macros.hpp>)
#include <catch2/catch_approx.hpp>
#include <catch2/catch_message.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
namespace portile::test {
using Catch::Approx;
}
#else
#include <catch2/catch.hpp>
namespace portile::test {
using Catch::Detail::Approx;
}
#endif
