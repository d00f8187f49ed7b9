#include <algorithm>
#include <cstdio>

#include <portile/core/composite.hpp>
#include <portile/core/numeric/integer.hpp>
#include <portile/core/plugin.hpp>
#include <portile/core/queue_state.hpp>
#include <portile/core/version.hpp>

namespace portile {
namespace {

// Stands for memory while a composite is chosen: checks look at addresses modulo the alignment only.
char* placeholder() { return reinterpret_cast<char*>(std::uintptr_t{1} << 32); }

}  // namespace

tensor composer::temporary(dtype type, std::initializer_list<std::int64_t> extents) {
  const tensor t = make_tensor(memory_ + used_, type, {extents.begin(), extents.size()}, where_);
  used_ += static_cast<std::uint64_t>(numeric::align_up(t.numel() * size_of(type), 256));
  return t;
}

void composer::run(const op_info& op, const void* step) {
  if (queue_) return detail::run(*queue_, op, step, options_);
  if (!refusal_.empty()) return;
  check(op, step).or_throw();
  const detail::resolution r =
      detail::resolve(*info_, info_->arch, op, step, detail::forced_for(op.name), host_fallback_);
  if (!r.choice.entry) {
    refusal_ = r.refusal;
    return;
  }
  if (!r.fallback) step_bytes_ = std::max(step_bytes_, r.workspace_bytes);
  steps_ += (steps_.empty() ? "" : ", ") + op.name + " (" + r.choice.entry->name +
            (r.fallback ? " on the host" : "") + ")";
}

composition::outline composition::outline_on(const portile_device_info& where, const void* problem,
                                             bool host_fallback) const {
  composer c;
  c.where_ = device(static_cast<device_kind>(where.kind), where.ordinal);
  c.memory_ = placeholder();
  c.info_ = &where;
  c.host_fallback_ = host_fallback;
  outline o;
  try {
    compose(problem, c);
    o.refusal = c.refusal_;
  } catch (const error& e) {
    o.refusal = std::string("a step is not legal: ") + e.what();
  }
  o.steps = c.steps_;
  o.temporary_bytes = c.used_;
  o.step_bytes = c.step_bytes_;
  return o;
}

void composition::run(queue& q, const void* problem, const outline& o, void* memory,
                      const run_options& options) const {
  composer c;
  c.where_ = q.get_device();
  c.memory_ = memory ? static_cast<char*>(memory) : placeholder();
  c.queue_ = &q;
  c.options_.max_blocks = options.max_blocks;
  // Steps share one workspace: the queue runs them in order.
  // Always given, so that no step takes the queue's arena, which may hold the temporaries.
  c.options_.workspace = c.memory_ + o.temporary_bytes;
  c.options_.workspace_bytes = o.step_bytes;
  compose(problem, c);
}

namespace detail {

std::int32_t composite_supports(const portile_implementation& entry, const portile_device_info& where,
                                const void* problem, char* text, std::size_t size) {
  std::string answer = "internal: supports failed";
  bool yes = false;
  (void)plugin::guarded(text, size, [&] {
    const composition::outline o = composition_of(&entry)->outline_on(where, problem, false);
    yes = o.refusal.empty();
    answer = yes ? o.steps : o.refusal;
  });
  std::snprintf(text, size, "%s", answer.c_str());
  return yes;
}

std::int32_t composite_workspace(const portile_implementation& entry, const portile_device_info& where,
                                 const void* problem, std::uint64_t* bytes) {
  char text[256];
  return plugin::guarded(text, sizeof text, [&] {
    *bytes = composition_of(&entry)->outline_on(where, problem, false).workspace_bytes();
  });
}

std::int32_t composite_launch(const portile_launch*, const void*, char* text, std::size_t size) {
  std::snprintf(text, size, "a composite is run by the dispatcher, on a queue");
  return static_cast<std::int32_t>(status_code::internal);
}

const composition* composition_of(const portile_implementation* entry) {
  for (const composition& c : compositions())
    if (c.entry == entry) return &c;
  return nullptr;
}

const portile_backend& builtin_backend() {
  // Leaked on purpose, like the registry, which points to it.
  static const auto* list = [] {
    auto* entries = new std::vector<const portile_implementation*>;
    for (const composition& c : compositions()) entries->push_back(c.entry);
    return entries;
  }();
  static const auto* table = new portile_backend(plugin::make_backend(
      "portile", PORTILE_VERSION, static_cast<device_kind>(any_device_kind), list->data(), list->size()));
  return *table;
}

}  // namespace detail

}  // namespace portile
