#pragma once
// Blocks that run beside each other and reach each other's shared memory (thread block clusters), products of
// bf16 on the matrix unit, and asynchronous copies in groups. A kernel of clusters is a kernel class with
//
//   static constexpr int cluster = 16;   // blocks of a cluster
//
// started by launch_clusters<K>. Block `rank` of cluster n has the index n * cluster + rank.
#include <atomic>
#include <vector>

#include "backends/gpu/platform.hpp"

namespace portile::gpu {

#if defined(PORTILE_EMULATOR)

/// A cluster is one large block of the engine; what its blocks share lies in the host's memory.
template <class K>
struct emulated_cluster {
  const typename K::params* params;
  unsigned char* memory;
  std::size_t bytes;  ///< of a block
};
template <class K, int Wave>
class emulated_cluster_block {
 public:
  using engine = emulator::block<K::threads * K::cluster, Wave>;
  static constexpr int threads = K::threads, wave_size = Wave, num_waves = threads / Wave;
  static constexpr bool has_mma_tf32 = engine::has_mma_tf32;

  emulated_cluster_block(const emulator::thread_view& t, const emulated_cluster<K>& c) : all_(t), c_(c) {}
  int thread() const { return all_.thread() % threads; }
  int lane() const { return all_.lane(); }
  int wave() const { return thread() / Wave; }
  int rank() const { return all_.thread() / threads; }
  std::int64_t index() const { return all_.index() * K::cluster + rank(); }
  std::int64_t grid() const { return all_.grid() * K::cluster; }
  template <class T>
  T* shared(std::size_t offset = 0) const {
    if (offset + sizeof(T) > c_.bytes) emulator::fail("shared memory beyond what the launch asked for");
    return reinterpret_cast<T*>(c_.memory + static_cast<std::size_t>(rank()) * c_.bytes + offset);
  }
  template <class T>
  T* peer(T* mine, int rank_of_peer) const {
    auto* const bytes = reinterpret_cast<unsigned char*>(mine);
    return reinterpret_cast<T*>(bytes + (rank_of_peer - rank()) * static_cast<std::ptrdiff_t>(c_.bytes));
  }
  void barrier(emulator::site where = emulator::site::current()) const { all_.barrier(where); }
  template <class T>
  T shuffle(T v, int source, emulator::site where = emulator::site::current()) const {
    return all_.shuffle(v, source, where);
  }
  template <class T>
  T shuffle_xor(T v, int mask, emulator::site where = emulator::site::current()) const {
    return all_.shuffle_xor(v, mask, where);
  }
  void copy16_async(void* shared, const void* global) const { all_.copy16_async(shared, global); }

 private:
  engine all_;
  const emulated_cluster<K>& c_;
};

template <class Block>
void cluster_arrive(const Block&) {}
template <class Block>
void cluster_wait(const Block& block) {
  block.barrier();
}

/// Where a block of a cluster receives what others send: a word of shared memory. Each turn: one thread calls
/// expect with the bytes of that turn, the others' threads send, all threads wait. Turns of a mailbox have
/// `parity` 0, 1, 0, ... It is opened by one thread before the cluster's first barrier.
struct mailbox {
  std::uint64_t state;

  void open() {}
  void expect(std::uint32_t) {}
  template <class Block>
  void wait(const Block& block, int) {
    block.barrier();
  }
};
/// Stores 16 or 4 bytes in the shared memory of block `rank`, at what is `to` in this block's.
template <class Block>
void send16(const Block& block, float* to, const words4& v, mailbox*, int rank) {
  store16(block.peer(to, rank), v);
}
template <class Block>
void send4(const Block& block, float* to, float v, mailbox*, int rank) {
  *block.peer(to, rank) = v;
}
inline void commit_copies() {}
template <int left>
void wait_copy_groups() {}

#else

/// Every thread of the cluster arrives, later waits: what the others wrote before they arrived is then seen.
template <class Block>
PORTILE_DEVICE void cluster_arrive(const Block&) {
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" : : : "memory");
#endif
}
template <class Block>
PORTILE_DEVICE void cluster_wait(const Block&) {
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory");
#endif
}

struct mailbox {
  std::uint64_t state;

#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 900
  PORTILE_DEVICE std::uint32_t address() const {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(this));
  }
  PORTILE_DEVICE void open() {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" : : "r"(address()) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
  }
  PORTILE_DEVICE void expect(std::uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :
                 : "r"(address()), "r"(bytes)
                 : "memory");
  }
  template <class Block>
  PORTILE_DEVICE void wait(const Block&, int parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}"
        :
        : "r"(address()), "r"(parity)
        : "memory");
  }
#else
  PORTILE_DEVICE void open() {}
  PORTILE_DEVICE void expect(std::uint32_t) {}
  template <class Block>
  PORTILE_DEVICE void wait(const Block&, int) {}
#endif
};
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 900
PORTILE_DEVICE std::uint32_t shared_address_of(const void* mine, int rank) {
  std::uint32_t to;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(to)
      : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(mine))), "r"(rank));
  return to;
}
#endif
// Not a store and a barrier of the cluster: its release would wait for the block's stores to global memory.
template <class Block>
PORTILE_DEVICE void send16(const Block&, float* to, const words4& v, mailbox* box, int rank) {
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 900
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
               :
               : "r"(shared_address_of(to, rank)), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]),
                 "r"(shared_address_of(box, rank))
               : "memory");
#endif
}
template <class Block>
PORTILE_DEVICE void send4(const Block&, float* to, float v, mailbox* box, int rank) {
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 900
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
               :
               : "r"(shared_address_of(to, rank)), "r"(__float_as_uint(v)), "r"(shared_address_of(box, rank))
               : "memory");
#endif
}

/// Ends a group of this thread's copy16_async; wait_copy_groups waits for all but the last `left` groups.
PORTILE_DEVICE void commit_copies() {
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" : : : "memory");
#endif
}
template <int left>
PORTILE_DEVICE void wait_copy_groups() {
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" : : "n"(left) : "memory");
#endif
}
#endif

/// sum += a * b, matrices of 16 x 16 and 16 x 8 bf16 values across the wave's lanes. The products are exact;
/// they are added in fp32, in an order and with a rounding that are the machine's own. With g = lane / 4 and
/// q = lane % 4, as (row, column), a lane has pairs of values
///   a: (g, 2q..), (g + 8, 2q..), (g, 2q + 8..), (g + 8, 2q + 8..);  b: (2q.., g), (2q + 8.., g)
///   sum: (g, 2q), (g, 2q + 1), (g + 8, 2q), (g + 8, 2q + 1)
template <class Block>
PORTILE_DEVICE void mma_bf16_16x8x16(const Block& block, float (&sum)[4], const std::uint32_t (&a)[4],
                                     const std::uint32_t (&b)[2]) {
#if defined(PORTILE_EMULATOR)
  const auto value = [](std::uint64_t words, int i) {  // of four bf16
    return numeric::bits_float(static_cast<std::uint32_t>(words >> (16 * i) & 0xFFFFu) << 16);
  };
  const auto both = [](std::uint32_t low, std::uint32_t high) { return std::uint64_t{high} << 32 | low; };
  const int g = block.lane() / 4, q = block.lane() % 4;
  std::uint64_t rows[2][4], columns[2][4];
  for (int l = 0; l < 4; ++l) {
    rows[0][l] = block.shuffle(both(a[0], a[2]), g * 4 + l);
    rows[1][l] = block.shuffle(both(a[1], a[3]), g * 4 + l);
    columns[0][l] = block.shuffle(both(b[0], b[1]), q * 8 + l);
    columns[1][l] = block.shuffle(both(b[0], b[1]), q * 8 + 4 + l);
  }
  for (int i = 0; i < 4; ++i)
    for (int l = 0; l < 4; ++l)
      for (int e = 0; e < 4; ++e) sum[i] += value(rows[i / 2][l], e) * value(columns[i % 2][l], e);
#elif defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 800
  (void)block;
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/// True when kernels for this device have clusters of blocks.
inline bool has_clusters(const portile_device_info& device) {
#if defined(PORTILE_GPU_HIP)
  (void)device;
  return false;
#elif defined(PORTILE_EMULATOR)
  return device.wave_size == 32;
#else
  // Code for an older part may be translated for one that has them.
  constexpr std::string_view archs = PORTILE_GPU_ARCHS;
  constexpr bool built =
      archs.find("_7") == std::string_view::npos && archs.find("_8") == std::string_view::npos;
  return built && (device.aspects >> static_cast<unsigned>(aspect::clusters) & 1) != 0;
#endif
}

#if defined(PORTILE_GPU_CUDA)
namespace detail {
/// Clusters of K that a device runs at once.
template <class K>
int resident_clusters(const portile_device_info& device, std::size_t shared_bytes) {
  static std::atomic<int> known[64] = {};  // one more than the number
  std::atomic<int>* const slot = device.ordinal < 64 ? &known[device.ordinal] : nullptr;
  if (slot && slot->load() > 0) return slot->load() - 1;
  const void* entry = reinterpret_cast<const void*>(&kernel_entry<K>);
  const current_device guard(device.ordinal);
  require_success(cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize, device.max_shared),
                  "shared memory of a kernel");
  require_success(cudaFuncSetAttribute(entry, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
                  "clusters of a kernel");
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = K::cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(K::cluster));
  config.blockDim = dim3(K::threads);
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int count = 0;
  if (cudaOccupancyMaxActiveClusters(&count, entry, &config) != cudaSuccess) {
    (void)cudaGetLastError();
    count = 0;
  }
  if (slot) slot->store(count + 1);
  return count;
}
}  // namespace detail
#endif

/// Starts K on at most `clusters` clusters, no more than run at once. False: the launch may not or cannot
/// have any, and nothing was started. A plan loads the kernel.
template <class K>
bool launch_clusters(const context& c, std::int64_t clusters, std::size_t shared_bytes,
                     const typename K::params& p) {
  const portile_launch& l = c.call;
  if (!has_clusters(*l.device)) return false;
  if (l.num_sms > 0) clusters = std::min<std::int64_t>(clusters, l.num_sms / K::cluster);
  if (l.max_blocks > 0) clusters = std::min<std::int64_t>(clusters, l.max_blocks / K::cluster);
#if defined(PORTILE_GPU_CUDA)
  clusters = std::min<std::int64_t>(clusters, detail::resident_clusters<K>(*l.device, shared_bytes));
  if (clusters <= 0) return false;
  if (c.prepare) return true;
  const current_device guard(l.device->ordinal);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = K::cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(clusters * K::cluster));
  config.blockDim = dim3(K::threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(l.stream);
  config.attrs = &attribute;
  config.numAttrs = 1;
  typename K::params copy = p;
  void* arguments[] = {&copy};
  require_success(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(&kernel_entry<K>), arguments),
                  "launch");
  return true;
#elif defined(PORTILE_EMULATOR)
  clusters = std::min<std::int64_t>(clusters, 2);
  if (clusters <= 0) return false;
  if (c.prepare) return true;
  std::vector<words4> memory(K::cluster * (shared_bytes / 16 + 1));
  const std::size_t bytes = (shared_bytes / 16 + 1) * 16;
  const emulated_cluster<K> cluster{&p, reinterpret_cast<unsigned char*>(memory.data()), bytes};
  emulator::run_blocks(
      clusters, K::threads * K::cluster, 32, 0,
      [](const emulator::thread_view& t, const void* params) {
        const auto& whole = *static_cast<const emulated_cluster<K>*>(params);
        emulated_cluster_block<K, 32> b(t, whole);
        K::run(b, *whole.params);
      },
      &cluster);
  return true;
#else
  return false;
#endif
}

}  // namespace portile::gpu
