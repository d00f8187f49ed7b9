#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <portile/core/queue.hpp>
#include <portile/core/tensor.hpp>

namespace portile::golden {

/// Where the elements of an array lie, in elements from its start.
struct placement {
  dtype type = dtype::none;
  std::vector<std::int64_t> shape, strides;

  std::int64_t count() const;
  std::int64_t span_bytes() const;
  /// Contiguous elements to and from their places after `base`.
  void scatter(unsigned char* base, const unsigned char* elements) const;
  void gather(const unsigned char* base, unsigned char* elements) const;
};

/// Memory for one array, on the queue's device or on the host, between guard bands. The host holds an image
/// of it.
class guarded_buffer {
 public:
  static constexpr std::int64_t band = 512;

  guarded_buffer(queue& q, placement where, bool on_host);
  guarded_buffer(const guarded_buffer&) = delete;
  ~guarded_buffer();

  /// Fills everything with this byte, then places the elements, if any, and copies it to the device.
  void reset(unsigned char fill, const std::vector<unsigned char>* elements);
  /// Copies the memory back.
  void download();
  /// Elements as they came back.
  std::vector<unsigned char> elements() const;
  /// What was written that must not have been: guards and padding, and with `read_only` the elements too.
  /// Empty: nothing.
  std::string stray_writes(bool read_only) const;

  void* data() const { return base_ + band; }
  const placement& layout() const { return where_; }

 private:
  queue& queue_;
  placement where_;
  bool on_host_;
  unsigned char* base_ = nullptr;
  std::vector<unsigned char> sent_, received_;
};

}  // namespace portile::golden
