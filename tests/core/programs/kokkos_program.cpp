// An application that uses Kokkos itself, in the order that the first argument names. Prints what it saw;
// exit code 0 when the results were right. Built twice: with the Kokkos of the reference plug-in, and with a
// second copy of it.
#include <Kokkos_Core.hpp>
#include <cstring>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include <portile/core/numeric/e4m3.hpp>
#include <portile/portile.hpp>

using namespace portile;

namespace {

/// A reference launch; the text of its error, "right" or "wrong".
std::string cast() {
  float x[128], sf = 0;
  numeric::e4m3 out[128];
  for (int i = 0; i < 128; ++i) x[i] = static_cast<float>(i);
  quant::per_token_cast p;
  p.x = make_tensor(x, {1, 128});
  p.out = make_tensor(out, {1, 128});
  p.out_sf = make_tensor(&sf, {1, 1});
  try {
    queue q{cpu_selector};
    run(q, p);
  } catch (const error& e) {
    return std::string(to_string(e.code())) + ": " + e.what();
  }
  return sf == 127.f / 448.f && numeric::to_float(out[127]) == 448.f ? "right" : "wrong";
}

/// The application's own use of Kokkos.
std::string own_sum() {
  Kokkos::View<long*> v("v", 1000);
  Kokkos::parallel_for(
      "fill", 1000, KOKKOS_LAMBDA(const int i) { v(i) = i; });
  long sum = 0;
  Kokkos::parallel_reduce(
      "sum", 1000, KOKKOS_LAMBDA(const int i, long& s) { s += v(i); }, sum);
  return sum == 499500 ? "right" : "wrong";
}

void say(const char* what, const std::string& text) { std::cout << what << ": " << text << std::endl; }
const char* initialized() { return Kokkos::is_initialized() ? "yes" : "no"; }

struct casts_when_destroyed {
  bool wanted = false;
  ~casts_when_destroyed() {
    if (wanted) say("cast in a static destructor", cast());
  }
} late;

}  // namespace

int main(int argc, char** argv) {
  const std::string order = argc > 1 ? argv[1] : "";
  if (order == "before") {
    Kokkos::initialize(argc, argv);
    say("cast", cast());
    say("initialized", initialized());
    say("sum", own_sum());
    Kokkos::finalize();
  } else if (order == "never") {
    say("cast", cast());
  } else if (order == "after_queue") {  // Portile is used, but nothing of the reference was launched yet
    queue q{cpu_selector};
    (void)backends();
    (void)explain(q, quant::per_token_cast{});
    say("initialized", initialized());
    Kokkos::initialize(argc, argv);
    say("cast", cast());
    say("sum", own_sum());
    Kokkos::finalize();
  } else if (order == "after_tested") {  // after a reference launch, testing is_initialized()
    say("cast", cast());
    say("initialized", initialized());
    const bool mine = !Kokkos::is_initialized();
    if (mine) Kokkos::initialize(argc, argv);
    say("sum", own_sum());
    say("cast", cast());
    if (mine) Kokkos::finalize();
  } else if (order ==
             "finalized") {  // the application was done with Kokkos before the first reference launch
    Kokkos::initialize(argc, argv);
    say("sum", own_sum());
    Kokkos::finalize();
    say("cast", cast());
  } else if (order == "finalized_between") {
    Kokkos::initialize(argc, argv);
    say("cast", cast());
    Kokkos::finalize();
    say("cast", cast());
  } else if (order == "threads") {
    std::vector<std::string> results(8);
    std::vector<std::thread> threads;
    for (auto& r : results)
      threads.emplace_back([&r] {
        for (int i = 0; i < 50; ++i)
          if (r = cast(); r != "right") return;
      });
    for (auto& t : threads) t.join();
    for (const auto& r : results) say("cast", r);
  } else if (order == "exit") {
    late.wanted = true;
    say("cast", cast());
    std::exit(0);
  } else {
    return 2;
  }
  return 0;
}
