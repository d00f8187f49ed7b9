#pragma once
// Runs the stages of the block one by one on a queue, times them, and checks each against the host reference
// when asked to.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <portile/portile.hpp>

namespace portile::block {

/// Device memory that lives as long as the store. Uploads and allocations give contiguous tensors.
class store {
 public:
  explicit store(queue q) : queue_(std::move(q)) {}
  store(const store&) = delete;
  ~store();
  tensor make(dtype type, std::initializer_list<std::int64_t> extents);
  template <class T>
  tensor upload(const std::vector<T>& values, std::initializer_list<std::int64_t> extents) {
    const tensor t = make(dtype_of<T>, extents);
    memcpy(queue_, t.data, values.data(), values.size() * sizeof(T));
    queue_.wait();
    return t;
  }

 private:
  queue queue_;
  std::vector<void*> memory_;
};

/// The same storage seen with other extents.
tensor reshape(const tensor& t, std::initializer_list<std::int64_t> extents);

struct stage {
  std::string name, op, implementation;
  bool host_fallback = false;
  double milliseconds = 0;
  double bytes = 0;  ///< of every tensor of the problem, once; or what the stage says it moves
  double flop = 0;   ///< 0: not counted, the stage is bound by memory
  // Compared with the host reference on the same inputs:
  bool compared = false;
  double difference = 0;  ///< largest |a - b| over the largest |b| of its row; for stages with equal bits the
                          ///< number of unequal elements
  double bound = 0;       ///< what it may be; 0 asks for equal bits
};

/// What a stage promises about its cost and accuracy.
struct expectation {
  double bound = 0;
  double flop = 0;
  std::optional<double> bytes{};
};

class runner {
 public:
  /// `progress(done)` is called after every stage.
  runner(queue q, bool compare, std::function<void(const stage&)> progress)
      : queue_(std::move(q)), compare_(compare), progress_(std::move(progress)) {}

  template <class P>
  void run(const std::string& name, const P& problem, const expectation& e = {}) {
    run_erased(name, get_operation(P::name), &problem, e);
  }
  const std::vector<stage>& stages() const { return stages_; }
  bool within_bounds() const;

 private:
  void run_erased(const std::string& name, const op_info& op, const void* problem, const expectation& e);

  queue queue_;
  bool compare_;
  std::function<void(const stage&)> progress_;
  std::vector<stage> stages_;
};

}  // namespace portile::block
