// gemm.nt beside cuBLAS on one GPU: the same tensors, one process, alternating. A line of JSON for each
// point.
//   portile_peer_cublas bf16|tf32|tf32_nearest|e4m3 [M ...]
// cuBLAS is opened at run time (LD_LIBRARY_PATH). e4m3: Portile with a scale for 1 x 128 and 128 x 128
// values, cuBLAS with one for each tensor. A sample is a graph of products over copies of the factors that
// together exceed the L2 cache, so that each finds its own in memory.
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <portile/portile.hpp>

namespace {

using namespace portile;

void require(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error(what);
}
void require(cudaError_t e, const char* what) {
  require(e == cudaSuccess, std::string(what) + ": " + cudaGetErrorString(e));
}
void require(cublasStatus_t s, const char* what) {
  require(s == CUBLAS_STATUS_SUCCESS, std::string(what) + ": status " + std::to_string(s));
}

/// cuBLAS, as functions found at run time.
struct cublas {
  static void* open(const char* name) {
    void* lib = dlopen(name, RTLD_NOW);
    if (!lib) throw std::runtime_error(dlerror());
    return lib;
  }
  template <class F>
  static F* find(void* lib, const char* name) {
    void* f = dlsym(lib, name);
    require(f != nullptr, std::string("no ") + name);
    return reinterpret_cast<F*>(f);
  }
  using gemm_ex = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                                 const void*, const void*, cudaDataType, int, const void*, cudaDataType, int,
                                 const void*, void*, cudaDataType, int, cublasComputeType_t,
                                 cublasGemmAlgo_t);
  void *lib = open("libcublas.so.13"), *light = open("libcublasLt.so.13");
  gemm_ex* multiply = find<gemm_ex>(lib, "cublasGemmEx");
  cublasHandle_t handle{};
  cublasLtHandle_t light_handle{};
  void* workspace = nullptr;
  static constexpr std::size_t workspace_bytes = std::size_t{64} << 20;
  float* ones = nullptr;

  explicit cublas(cudaStream_t stream) {
    require(find<cublasStatus_t(cublasHandle_t*)>(lib, "cublasCreate_v2")(&handle), "cublasCreate");
    require(find<cublasStatus_t(cublasHandle_t, cudaStream_t)>(lib, "cublasSetStream_v2")(handle, stream),
            "stream");
    require(cudaMalloc(&workspace, workspace_bytes), "workspace");
    require(find<cublasStatus_t(cublasHandle_t, void*, std::size_t)>(lib, "cublasSetWorkspace_v2")(
                handle, workspace, workspace_bytes),
            "workspace");
    require(find<cublasStatus_t(cublasLtHandle_t*)>(light, "cublasLtCreate")(&light_handle),
            "cublasLtCreate");
    const float one = 1.0f;
    require(cudaMalloc(reinterpret_cast<void**>(&ones), sizeof one), "scale");
    require(cudaMemcpy(ones, &one, sizeof one, cudaMemcpyHostToDevice), "scale");
  }

  /// out = a * b^T; row-major is the transposed product of column-major matrices.
  void operator()(const gemm::nt& p) const {
    const int m = static_cast<int>(p.out.extent(0)), n = static_cast<int>(p.out.extent(1)),
              k = static_cast<int>(p.a.extent(1));
    const float one = 1, zero = 0;
    const bool tf32 = p.a.dtype == dtype::f32;
    const cudaDataType in = tf32 ? CUDA_R_32F : CUDA_R_16BF,
                       out = p.out.dtype == dtype::f32 ? CUDA_R_32F : CUDA_R_16BF;
    require(multiply(handle, CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, &one, p.b.data, in, k, p.a.data, in, k, &zero,
                     p.out.data, out, n, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                     CUBLAS_GEMM_DEFAULT),
            "cublasGemmEx");
  }

  /// The same of e4m3 factors, a scale for each tensor: the best of its own choices.
  std::function<void(const gemm::nt&, cudaStream_t)> quantised(const gemm::nt& p) const {
    const auto m = static_cast<std::uint64_t>(p.out.extent(0)),
               n = static_cast<std::uint64_t>(p.out.extent(1)), k = static_cast<std::uint64_t>(p.a.extent(1));
    cublasLtMatmulDesc_t op{};
    cublasLtMatrixLayout_t a{}, b{}, d{};
    cublasLtMatmulPreference_t preference{};
    require(find<decltype(cublasLtMatmulDescCreate)>(light, "cublasLtMatmulDescCreate")(
                &op, CUBLAS_COMPUTE_32F, CUDA_R_32F),
            "op");
    auto* const set = find<decltype(cublasLtMatmulDescSetAttribute)>(light, "cublasLtMatmulDescSetAttribute");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    require(set(op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed), "op");
    require(set(op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &ones, sizeof ones), "op");
    require(set(op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &ones, sizeof ones), "op");
    auto* const layout = find<decltype(cublasLtMatrixLayoutCreate)>(light, "cublasLtMatrixLayoutCreate");
    require(layout(&a, CUDA_R_8F_E4M3, k, n, static_cast<std::int64_t>(k)), "layout");
    require(layout(&b, CUDA_R_8F_E4M3, k, m, static_cast<std::int64_t>(k)), "layout");
    require(layout(&d, CUDA_R_16BF, n, m, static_cast<std::int64_t>(n)), "layout");
    require(
        find<decltype(cublasLtMatmulPreferenceCreate)>(light, "cublasLtMatmulPreferenceCreate")(&preference),
        "preference");
    const std::size_t bytes = workspace_bytes;
    require(
        find<decltype(cublasLtMatmulPreferenceSetAttribute)>(light, "cublasLtMatmulPreferenceSetAttribute")(
            preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes),
        "preference");
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    require(find<decltype(cublasLtMatmulAlgoGetHeuristic)>(light, "cublasLtMatmulAlgoGetHeuristic")(
                light_handle, op, a, b, d, d, preference, 1, &found, &count),
            "heuristic");
    require(count == 1, "no algorithm");
    auto* const run = find<decltype(cublasLtMatmul)>(light, "cublasLtMatmul");
    return [=, this](const gemm::nt& q, cudaStream_t stream) {
      const float one = 1, zero = 0;
      require(run(light_handle, op, &one, q.b.data, a, q.a.data, b, &zero, q.out.data, d, q.out.data, d,
                  &found.algo, workspace, workspace_bytes, stream),
              "cublasLtMatmul");
    };
  }
};

std::string json(const char* type, std::int64_t m, std::int64_t n, std::int64_t k, double ours, double peer) {
  char text[512];
  std::snprintf(text, sizeof text,
                "{\"peer\": \"cublas\", \"op\": \"gemm.nt\", \"point\": {\"M\": %ld, \"N\": %ld, \"K\": "
                "%ld}, \"dtype\": \"%s\", "
                "\"portile_us\": %.2f, \"peer_us\": %.2f, \"ratio\": %.4f, \"portile_tflops\": %.1f, "
                "\"peer_tflops\": %.1f",
                static_cast<long>(m), static_cast<long>(n), static_cast<long>(k), type, ours, peer,
                peer / ours, 2e-6 * static_cast<double>(m * n) * static_cast<double>(k) / ours,
                2e-6 * static_cast<double>(m * n) * static_cast<double>(k) / peer);
  return text;
}

int run_all(const std::string& type, std::vector<std::int64_t> rows) {
  if (rows.empty()) rows = {64, 128, 512, 4096, 8192};
  const std::int64_t weights[][2] = {{2112, 7168}, {24576, 1536}, {32768, 512}, {7168, 16384},
                                     {4096, 7168}, {7168, 2048},  {8192, 8192}};
  const bool quantised = type == "e4m3", f32 = type.starts_with("tf32");
  const dtype in = quantised ? dtype::e4m3
                   : f32     ? dtype::f32
                             : dtype::bf16,
              out = f32 ? dtype::f32 : dtype::bf16;
  queue q(gpu_selector);
  const auto stream = static_cast<cudaStream_t>(q.native_handle());
  const cublas peer(stream);

  // Random factors, cut out of one piece of memory.
  constexpr std::int64_t pool_bytes = std::int64_t{8} << 30, seed_bytes = std::int64_t{64} << 20;
  auto* const pool = static_cast<char*>(malloc_device(static_cast<std::size_t>(pool_bytes), q));
  std::vector<std::uint32_t> random(static_cast<std::size_t>(seed_bytes / 4));
  std::mt19937 rng(1);
  for (std::uint32_t& w : random) {
    const std::uint32_t x = rng();
    w = quantised ? (x & 0x9F9F9F9Fu) + 0x20202020u
        : f32     ? (x & 0x807FFFFFu) | (0x3E800000u + ((x >> 23 & 3) << 23))
                  : (x & 0x807F807Fu) | (0x3E803E80u + ((x >> 7 & 3) << 7) + ((x >> 23 & 3) << 23));
  }
  // Copies at odd distances, so that rows differ.
  memcpy(q, pool, random.data(), static_cast<std::size_t>(seed_bytes));
  for (std::int64_t at = seed_bytes; at < pool_bytes; at += seed_bytes)
    memcpy(q, pool + at, pool, static_cast<std::size_t>(seed_bytes));
  std::vector<float> scale_values(std::size_t{4} << 20, 0.5f);
  auto* const scales = static_cast<char*>(malloc_device(scale_values.size() * 4, q));
  memcpy(q, scales, scale_values.data(), scale_values.size() * 4);
  q.wait();
  cudaEvent_t start{}, stop{};
  require(cudaEventCreate(&start), "event");
  require(cudaEventCreate(&stop), "event");

  double logs = 0, least = 1e9;
  int points = 0;
  for (const std::int64_t m : rows)
    for (const auto& [n, k] : weights) {
      const auto whole = [](std::int64_t b) { return (b + 255) / 256 * 256; };
      const std::int64_t a_bytes = whole(m * k * size_of(in)), b_bytes = whole(n * k * size_of(in)),
                         out_bytes = whole(m * n * size_of(out));
      const std::int64_t copies =
          std::clamp<std::int64_t>((std::int64_t{300} << 20) / (a_bytes + b_bytes + out_bytes) + 1, 2, 16);
      require((a_bytes + b_bytes + out_bytes) * copies <= pool_bytes, "the pool of memory is too small");
      std::vector<gemm::nt> problems;
      std::vector<plan> plans;
      // Results behind all factors: they stay as they were made.
      char *at = pool, *results = pool + (a_bytes + b_bytes) * copies;
      for (std::int64_t i = 0; i < copies; ++i, at += a_bytes + b_bytes, results += out_bytes) {
        gemm::nt p;
        p.a = make_tensor(at, in, {m, k}, q.get_device());
        p.b = make_tensor(at + a_bytes, in, {n, k}, q.get_device());
        p.out = make_tensor(results, out, {m, n}, q.get_device());
        if (quantised) {
          p.a_sf = make_tensor(scales, dtype::f32, {m, (k + 127) / 128}, q.get_device());
          p.b_sf = make_tensor(scales, dtype::f32, {(n + 127) / 128, (k + 127) / 128}, q.get_device());
        }
        if (type == "tf32") p.tf32_rounding = "truncate";
        problems.push_back(p);
        plans.emplace_back(q, p);
      }
      const auto record = [&](const std::function<void(std::size_t)>& submit) {
        submit(0);
        q.wait();
        cudaGraph_t graph{};
        cudaGraphExec_t executable{};
        require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "capture");
        for (std::size_t i = 0; i < problems.size(); ++i) submit(i);
        require(cudaStreamEndCapture(stream, &graph), "capture");
        require(cudaGraphInstantiate(&executable, graph, 0), "graph");
        cudaGraphDestroy(graph);
        return executable;
      };
      const auto sample = [&](cudaGraphExec_t graph) {
        require(cudaEventRecord(start, stream), "event");
        require(cudaGraphLaunch(graph, stream), "graph");
        require(cudaEventRecord(stop, stream), "event");
        require(cudaEventSynchronize(stop), "event");
        float ms = 0;
        require(cudaEventElapsedTime(&ms, start, stop), "event");
        return ms * 1000.0 / static_cast<double>(problems.size());
      };
      const auto theirs =
          quantised ? peer.quantised(problems[0]) : std::function<void(const gemm::nt&, cudaStream_t)>{};
      const cudaGraphExec_t ours_graph = record([&](std::size_t i) { plans[i].run(problems[i]); });
      const cudaGraphExec_t peer_graph =
          record([&](std::size_t i) { quantised ? theirs(problems[i], stream) : peer(problems[i]); });
      std::vector<double> ours, other;
      sample(ours_graph), sample(peer_graph);
      for (int i = 0; i < 9; ++i) ours.push_back(sample(ours_graph)), other.push_back(sample(peer_graph));
      std::sort(ours.begin(), ours.end());
      std::sort(other.begin(), other.end());
      const double ratio = other[4] / ours[4];
      std::printf(
          "%s, \"portile_quartiles_us\": [%.2f, %.2f], \"peer_quartiles_us\": [%.2f, %.2f], "
          "\"implementation\": \"%s\"}\n",
          json(type.c_str(), m, n, k, ours[4], other[4]).c_str(), ours[2], ours[6], other[2], other[6],
          std::string(plans[0].implementation()).c_str());
      std::fflush(stdout);
      logs += std::log(ratio), least = std::min(least, ratio), ++points;
      cudaGraphExecDestroy(ours_graph);
      cudaGraphExecDestroy(peer_graph);
    }
  std::fprintf(stderr, "%s: geometric mean %.3f, least %.3f of %d points\n", type.c_str(),
               std::exp(logs / points), least, points);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string type = argc > 1 ? argv[1] : "";
  if (type != "bf16" && type != "tf32" && type != "tf32_nearest" && type != "e4m3")
    return std::fprintf(stderr, "usage: %s bf16|tf32|tf32_nearest|e4m3 [M ...]\n", argv[0]), 2;
  std::vector<std::int64_t> rows;
  for (int i = 2; i < argc; ++i) rows.push_back(std::atoll(argv[i]));
  try {
    return run_all(type, rows);
  } catch (const std::exception& e) {
    return std::fprintf(stderr, "%s\n", e.what()), 1;
  }
}
