#include "buffer.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace portile::golden {
namespace {

// Calls f(offset in elements) for every element in row-major order.
template <class F>
void walk(const placement& p, F f) {
  const std::int64_t n = p.count();
  std::vector<std::int64_t> at(p.shape.size(), 0);
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    f(offset);
    for (std::size_t d = p.shape.size(); d-- > 0;) {
      offset += p.strides[d];
      if (++at[d] < p.shape[d]) break;
      offset -= p.strides[d] * p.shape[d];
      at[d] = 0;
    }
  }
}

}  // namespace

std::int64_t placement::count() const {
  std::int64_t n = 1;
  for (const std::int64_t e : shape) n *= e;
  return n;
}

std::int64_t placement::span_bytes() const {
  if (count() == 0) return 0;
  std::int64_t last = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) last += (shape[d] - 1) * strides[d];
  return (last + 1) * size_of(type);
}

void placement::scatter(unsigned char* base, const unsigned char* elements) const {
  const std::int64_t size = size_of(type);
  walk(*this, [&](std::int64_t offset) {
    std::memcpy(base + offset * size, elements, static_cast<std::size_t>(size));
    elements += size;
  });
}

void placement::gather(const unsigned char* base, unsigned char* elements) const {
  const std::int64_t size = size_of(type);
  walk(*this, [&](std::int64_t offset) {
    std::memcpy(elements, base + offset * size, static_cast<std::size_t>(size));
    elements += size;
  });
}

guarded_buffer::guarded_buffer(queue& q, placement where, bool on_host)
    : queue_(q),
      where_(std::move(where)),
      on_host_(on_host),
      sent_(static_cast<std::size_t>(where_.span_bytes() + 2 * band)),
      received_(sent_) {
  base_ =
      static_cast<unsigned char*>(on_host ? malloc_host(sent_.size(), q) : malloc_device(sent_.size(), q));
}

guarded_buffer::~guarded_buffer() {
  try {
    on_host_ ? free_host(base_, queue_) : free(base_, queue_);
  } catch (const error&) {  // the device is gone: the run has reported that
  }
}

void guarded_buffer::reset(unsigned char fill, const std::vector<unsigned char>* elements) {
  std::fill(sent_.begin(), sent_.end(), fill);
  if (elements) where_.scatter(sent_.data() + band, elements->data());
  if (on_host_)
    std::memcpy(base_, sent_.data(), sent_.size());
  else
    memcpy(queue_, base_, sent_.data(), sent_.size());
}

void guarded_buffer::download() {
  if (on_host_)
    std::memcpy(received_.data(), base_, received_.size());
  else
    memcpy(queue_, received_.data(), base_, received_.size());
}

std::vector<unsigned char> guarded_buffer::elements() const {
  std::vector<unsigned char> e(static_cast<std::size_t>(where_.count() * size_of(where_.type)));
  where_.gather(received_.data() + band, e.data());
  return e;
}

std::string guarded_buffer::stray_writes(bool read_only) const {
  std::vector<unsigned char> legal = sent_;
  if (!read_only) where_.scatter(legal.data() + band, elements().data());
  const auto at = std::mismatch(legal.begin(), legal.end(), received_.begin());
  if (at.first == legal.end()) return {};
  const std::int64_t byte = at.first - legal.begin() - band, span = where_.span_bytes();
  const std::string place = byte < 0       ? fmt::format("{} bytes before its start", -byte)
                            : byte >= span ? fmt::format("{} bytes after its end", byte - span)
                            : read_only    ? fmt::format("byte {} of an input", byte)
                                           : fmt::format("byte {}, between its rows", byte);
  return fmt::format("memory that is not to be written was written: {} (0x{:02x} became 0x{:02x})", place,
                     *at.first, *at.second);
}

}  // namespace portile::golden
