// Records submitted work as a CUDA graph and runs that.
#include "fuzz/cuda_graph.hpp"

#include <cuda_runtime_api.h>

namespace portile::fuzz {
namespace {

void require(cudaError_t e, const char* what) {
  if (e != cudaSuccess) throw failure{std::string(what) + ": " + cudaGetErrorString(e)};
}

}  // namespace

void replay_as_graph(queue& q, const std::function<void()>& submit) {
  const auto stream = static_cast<cudaStream_t>(q.native_handle());
  cudaGraph_t graph{};
  cudaGraphExec_t executable{};
  // Global mode: a call that may synchronise or allocate, from any thread, fails.
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin a capture");
  submit();
  require(cudaStreamEndCapture(stream, &graph), "end a capture");
  require(cudaGraphInstantiate(&executable, graph, 0), "instantiate a graph");
  require(cudaGraphLaunch(executable, stream), "launch a graph");
  require(cudaStreamSynchronize(stream), "run a graph");
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

}  // namespace portile::fuzz
