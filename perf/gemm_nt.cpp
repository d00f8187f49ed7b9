// Times gemm.nt on a GPU: median of 20 runs after 3 warm-ups, random bf16 data. usage: portile_perf_gemm_nt M
// N K
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

#include <portile/portile.hpp>

int main(int argc, char** argv) {
  using namespace portile;
  if (argc != 4) return std::fprintf(stderr, "usage: %s M N K\n", argv[0]), 2;
  const std::int64_t M = std::atoll(argv[1]), N = std::atoll(argv[2]), K = std::atoll(argv[3]);
  queue q(gpu_selector);
  const auto random = [&](std::int64_t rows) {
    std::vector<std::uint16_t> host(static_cast<std::size_t>(rows * K));
    std::mt19937 rng(static_cast<unsigned>(rows));
    for (auto& v : host) v = static_cast<std::uint16_t>((rng() & 0x807f) | (0x3f00 + ((rng() & 3) << 7)));
    void* p = malloc_device(host.size() * 2, q);
    memcpy(q, p, host.data(), host.size() * 2);
    q.wait();
    return make_tensor(p, dtype::bf16, {rows, K}, q.get_device());
  };
  gemm::nt p;
  p.a = random(M);
  p.b = random(N);
  p.out =
      make_tensor(malloc_device(static_cast<std::size_t>(M * N * 2), q), dtype::bf16, {M, N}, q.get_device());
  plan chosen(q, p);
  std::vector<double> ms;
  for (int i = 0; i < 23; ++i) {
    const event a = q.record();
    chosen.run(p);
    const event b = q.record();
    q.wait();
    if (i >= 3) ms.push_back(b.milliseconds_since(a));
  }
  std::sort(ms.begin(), ms.end());
  std::printf(
      "gemm.nt %s bf16 %ldx%ldx%ld: median %.3f ms (%.3f to %.3f), %.1f TFLOP/s\n",
      std::string(chosen.implementation()).c_str(), static_cast<long>(M), static_cast<long>(N),
      static_cast<long>(K), ms[ms.size() / 2], ms.front(), ms.back(),
      2e-9 * static_cast<double>(M) * static_cast<double>(N) * static_cast<double>(K) / ms[ms.size() / 2]);
}
