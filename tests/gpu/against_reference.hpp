#pragma once
// Runs a problem on the host's reference and, on copies, on every implementation of the GPU at hand, real or
// emulated.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <portile/portile.hpp>

#include "support/catch.hpp"
#include "support/memory.hpp"

namespace portile::test {

/// The GPU under test. Without one the program ends with the code that the build takes for "skipped".
inline device gpu() {
  for (const device d : device::all())
    if (d.kind() != device_kind::cpu) return d;
  std::printf("skipped: no GPU, and no emulated one on PORTILE_BACKEND_PATH\n");
  for (const backend_info& b : backends())
    if (!b.reason.empty()) std::printf("  %s: %s\n", b.name.c_str(), b.reason.c_str());
  std::fflush(stdout);
  std::_Exit(77);
}

/// Implementations of an operation for a kind of device.
inline std::vector<std::string> implementations_on(device d, std::string_view op) {
  std::vector<std::string> names;
  for (const implementation_ref& i : implementations(op))
    if (i.entry->device_kind == static_cast<std::int32_t>(d.kind())) names.emplace_back(i.entry->name);
  return names;
}

/// How many random problems to try: all of them on a real device, some on an emulated one, which is a hundred
/// times as slow.
inline unsigned trials(unsigned on_device) {
  return std::string_view(gpu().info().arch) == "emulated" ? std::max(on_device / 8, 4u) : on_device;
}

using bytes = std::vector<unsigned char>;

inline bytes host_bytes(const tensor& t) {
  const auto* p = static_cast<const unsigned char*>(t.data);
  return bytes(p, p + t.span() * size_of(t.dtype));
}

/// The tensors of a problem copied to a device between guard bands, at the same address modulo 256.
template <class P>
class device_copy {
 public:
  device_copy(queue& q, const P& host) : q_(q), problem_(host) {
    for (const field_info& f : get_operation(P::name).fields) {
      if (f.kind != field_kind::tensor || f.on_host) continue;
      tensor& t = f.tensor_in(&problem_);
      if (!t.defined()) continue;
      buffer b{host_bytes(t), nullptr, band + reinterpret_cast<std::uintptr_t>(t.data) % 256};
      bytes image(b.offset + b.initial.size() + band, guard);
      std::copy(b.initial.begin(), b.initial.end(), image.begin() + static_cast<std::ptrdiff_t>(b.offset));
      b.base = malloc_device(image.size(), q_);
      memcpy(q_, b.base, image.data(), image.size());
      q_.wait();
      t.data = static_cast<unsigned char*>(b.base) + b.offset;
      t.device = q_.get_device();
      buffers_.emplace(f.name, std::move(b));
    }
  }
  ~device_copy() {
    for (auto& [name, b] : buffers_) free(b.base, q_);
  }
  device_copy(const device_copy&) = delete;

  const P& problem() const { return problem_; }
  /// Copies a tensor's span back; empty when a byte beside it has changed.
  bytes download(const std::string& field) {
    const buffer& b = buffers_.at(field);
    bytes image(b.offset + b.initial.size() + band);
    memcpy(q_, image.data(), b.base, image.size());
    q_.wait();
    for (std::size_t i = 0; i < image.size(); ++i)
      if ((i < b.offset || i >= b.offset + b.initial.size()) && image[i] != guard) return {};
    return bytes(image.begin() + static_cast<std::ptrdiff_t>(b.offset),
                 image.end() - static_cast<std::ptrdiff_t>(band));
  }
  const bytes& initial(const std::string& field) const { return buffers_.at(field).initial; }
  std::vector<std::string> fields() const {
    std::vector<std::string> names;
    for (const auto& [name, b] : buffers_) names.push_back(name);
    return names;
  }

 private:
  static constexpr std::size_t band = 512;
  static constexpr unsigned char guard = 0x3C;
  struct buffer {
    bytes initial;
    void* base;
    std::size_t offset;
  };
  queue& q_;
  P problem_;
  std::map<std::string, buffer> buffers_;
};

/// What a run reported: "" or the rule and index of the data it found broken.
template <class P>
std::string run_checked(queue& q, const P& p, const run_options& o) {
  run(q, p, o);
  try {
    q.wait();
  } catch (const data_error& e) {
    return e.rule() + " at " + std::to_string(e.index());
  }
  return {};
}

/// Compares one output: name, the reference's bytes, the device's bytes; true when they agree.
using comparison = std::function<bool(const std::string&, const bytes&, const bytes&)>;

/// Runs `host` (tensors in host memory, outputs in their initial state) on the reference and on each
/// implementation of the GPU, with the default grid and with small ones; the tensors of `host` then hold the
/// reference's results. Bytes must agree, gaps between strided rows too, unless `agree` says otherwise; so
/// must what checked queues report.
template <class P>
void expect_as_reference(const P& host, const comparison& agree = {}) {
  static queue on_host{cpu_selector, queue_properties{.checked = true}};
  static queue on_gpu{gpu(), queue_properties{.checked = true}};
  const std::vector<std::string> names = implementations_on(on_gpu.get_device(), P::name);
  REQUIRE(!names.empty());
  std::vector<std::unique_ptr<device_copy<P>>> copies;
  for (std::size_t i = 0; i < names.size() * 3; ++i)
    copies.push_back(std::make_unique<device_copy<P>>(on_gpu, host));
  const std::string reported = run_checked(on_host, host, run_options{.implementation = "reference"});

  std::size_t next = 0;
  for (const std::string& name : names) {
    char reason[512] = "";
    bool accepted = true;
    for (const implementation_ref& i : implementations(P::name))
      if (name == i.entry->name &&
          i.entry->device_kind == static_cast<std::int32_t>(on_gpu.get_device().kind()))
        accepted = i.entry->supports(&on_gpu.get_device().info(), &copies[next]->problem(), reason,
                                     sizeof reason) != 0;
    INFO(name << ": " << reason);
    CHECK((accepted || name.find(".simt") == std::string::npos));
    for (std::int64_t max_blocks : {std::int64_t{0}, std::int64_t{1}, std::int64_t{3}}) {
      device_copy<P>& copy = *copies[next++];
      if (!accepted) continue;
      run_options o;
      o.implementation = name;
      o.max_blocks = max_blocks;
      INFO("max_blocks " << max_blocks);
      CHECK(run_checked(on_gpu, copy.problem(), o) == reported);
      for (const field_info& f : get_operation(P::name).fields) {
        if (f.kind != field_kind::tensor || f.on_host || !f.tensor_in(&host).defined()) continue;
        const bytes expected = host_bytes(f.tensor_in(&host)), got = copy.download(f.name);
        INFO(f.name << " " << f.tensor_in(&host).text());
        REQUIRE(got.size() == expected.size());
        if (f.role != field_role::in && agree) {
          CHECK(agree(f.name, expected, got));
          continue;
        }
        std::size_t first = 0;
        while (first < got.size() && got[first] == expected[first]) ++first;
        if (first < got.size()) {
          INFO("byte " << first << " of " << got.size() << ": expected " << int{expected[first]} << ", got "
                       << int{got[first]});
          CHECK(got[first] == expected[first]);
        }
      }
    }
  }
}

}  // namespace portile::test
