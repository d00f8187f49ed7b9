// Who initialises Kokkos, and when: child processes, because Kokkos has one state per process.
#include <Kokkos_Macros.hpp>
#include <filesystem>

#include "core/child.hpp"
#include "support/catch.hpp"

namespace {

std::string folder() { return std::filesystem::canonical("/proc/self/exe").parent_path().string(); }
std::string program(const std::string& order, const char* name = "portile_kokkos_program") {
  return portile::test::child(folder() + "/" + name + " " + order);
}
int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

}  // namespace

TEST_CASE("the application initialises Kokkos before the first reference launch, and finalises it") {
  for (const char* order : {"before", "after_queue"}) {
    const std::string text = program(order);
    INFO(order << "\n" << text);
    CHECK(count(text, "cast: right") == 1);
    CHECK(count(text, "sum: right") == 1);
    CHECK(count(text, "exit 0") == 1);
    CHECK(count(text, order == std::string("before") ? "initialized: yes" : "initialized: no") == 1);
  }
}

TEST_CASE("the application never uses Kokkos: it is initialised at the first launch and finalised at exit") {
  const std::string text = program("never");
  INFO(text);
  CHECK(count(text, "cast: right") == 1);
  CHECK(count(text, "exit 0") == 1);
}

TEST_CASE("the application uses Kokkos after a reference launch and tests is_initialized()") {
  const std::string text = program("after_tested");
  INFO(text);
  CHECK(count(text, "initialized: yes") == 1);  // one copy: the application's
  CHECK(count(text, "cast: right") == 2);
  CHECK(count(text, "sum: right") == 1);
  CHECK(count(text, "exit 0") == 1);
}

TEST_CASE("a launch after the application finalised Kokkos gives an error or works, and never aborts") {
  const std::string between = program("finalized_between");
  INFO(between);
  CHECK(count(between, "cast: right") == 1);
  CHECK(count(between, "device_error: quant.per_token_cast reference: reference: Kokkos is finalised") == 1);
  CHECK(count(between, "exit 0") == 1);
  const std::string before = program("finalized");
  INFO(before);
  CHECK(count(before, "cast: right") + count(before, "Kokkos is finalised") ==
        1);  // Kokkos 3 starts again, later ones cannot
  CHECK(count(before, "exit 0") == 1);
}

TEST_CASE("eight threads make the first reference launch") {
  const std::string text = program("threads");
  INFO(text);
  CHECK(count(text, "cast: right") == 8);
  CHECK(count(text, "exit 0") == 1);
}

TEST_CASE("a launch from a static destructor, after Kokkos was finalised at exit, is an error") {
  const std::string text = program("exit");
  INFO(text);
  CHECK(count(text, "cast in a static destructor: device_error") == 1);
  CHECK(count(text, "exit 0") == 1);
}

// The trial that docs/kokkos.md describes was made with Kokkos 3.
#if defined(PORTILE_SECOND_KOKKOS) && KOKKOS_VERSION < 40000
// docs/kokkos.md says what these show, and why the exit status of the first is not looked at: the copies
// share their global objects, which are destroyed twice.
TEST_CASE("a second Kokkos copy that the program links is the one that both use") {
  for (const char* order : {"before", "never", "after_queue", "after_tested", "threads"}) {
    const std::string text = program(order, "portile_second_kokkos_program");
    INFO(order << "\n" << text);
    CHECK(count(text, "cast: right") >= 1);
    CHECK(count(text, "wrong") == 0);
    CHECK(count(text, "error") == 0);
    if (order == std::string("after_tested")) CHECK(count(text, "initialized: yes") == 1);
  }
}

TEST_CASE("a second Kokkos copy in a library loaded locally keeps a state of its own") {
  const std::string text = portile::test::child(folder() + "/portile_second_kokkos_loader " + folder() +
                                                "/../tests/second/libportile_second_kokkos_user.so");
  INFO(text);
  CHECK(count(text, "second copy initialized by the reference: 0") == 1);
  CHECK(count(text, "sum: 4950") == 1);
  CHECK(count(text, "copies: 2") == 1);
  CHECK(count(text, "exit 0") == 1);
}
#endif
