#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <ostream>

#include <portile/core/composite.hpp>
#include <portile/core/dispatch.hpp>
#include <portile/core/log.hpp>
#include <portile/core/queue_state.hpp>
#include <portile/core/registry.hpp>

namespace portile {

bool glob_match(std::string_view p, std::string_view t) {
  // Only the last '*' is ever taken back, so the time is at most |p| * |t|.
  std::size_t i = 0, j = 0, star = std::string_view::npos, mark = 0;
  while (j < t.size()) {
    if (i < p.size() && p[i] == '*') {
      star = i++;
      mark = j;
    } else if (i < p.size() && (p[i] == '?' || p[i] == t[j])) {
      ++i;
      ++j;
    } else if (star != std::string_view::npos) {
      i = star + 1;
      j = ++mark;
    } else {
      return false;
    }
  }
  while (i < p.size() && p[i] == '*') ++i;
  return i == p.size();
}

namespace {

using rule_list = std::vector<std::pair<std::string, std::string>>;

struct forced_rules {
  std::atomic<bool> any =
      false;  ///< some rule, or the environment's broken text: the common case costs one load
  std::mutex mutex;
  rule_list rules;
  std::string broken;  ///< why PORTILE_IMPL cannot be used: every run says so until the API replaces it
};

std::string_view trim(std::string_view s) {
  while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
  while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
  return s;
}

rule_list parse_rules(std::string_view source, std::string_view list) {
  const auto refuse = [&](std::string_view value, const char* rule) {
    throw error(status_code::invalid_argument,
                std::string(source) + ": '" + std::string(value) + "': " + rule);
  };
  rule_list rules;
  while (!list.empty()) {
    const auto comma = list.find(',');
    const std::string_view one = trim(list.substr(0, comma));
    list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
    if (one.empty()) continue;
    const auto eq = one.find('=');
    const std::string_view op = trim(one.substr(0, eq));
    const std::string_view implementation =
        eq == std::string_view::npos ? std::string_view{} : trim(one.substr(eq + 1));
    if (op.empty() || implementation.empty()) refuse(one, "must be op=implementation");
    const auto& all = operations();
    if (std::none_of(all.begin(), all.end(), [&](const op_info& o) { return glob_match(op, o.name); }))
      refuse(one, "no operation has this name");
    rules.emplace_back(op, implementation);
  }
  return rules;
}

// Leaked on purpose, like the registry.
forced_rules& forced() {
  static forced_rules* rules = [] {
    auto* f = new forced_rules;
    if (const char* e = std::getenv("PORTILE_IMPL")) try {
        f->rules = parse_rules("PORTILE_IMPL", e);
      } catch (const error& bad) {
        f->broken = bad.what();
      }
    f->any = !f->rules.empty() || !f->broken.empty();
    return f;
  }();
  return *rules;
}

}  // namespace

std::string detail::forced_for(std::string_view op, std::string_view option) {
  if (!option.empty()) return std::string(option);
  forced_rules& f = forced();
  if (!f.any.load(std::memory_order_acquire)) return {};
  const std::lock_guard lock(f.mutex);
  if (!f.broken.empty()) throw error(status_code::invalid_argument, f.broken);
  for (const auto& [pattern, implementation] : f.rules)
    if (glob_match(pattern, op)) return implementation;
  return {};
}

namespace {

using detail::forced_for;

// Whether the device is of the kind that the implementation is for.
bool fits_kind(const portile_device_info& device, const implementation_ref& i, std::string& reason) {
  if (i.entry->device_kind == device.kind || i.entry->device_kind == any_device_kind) return true;
  reason = "runs on " + std::string(to_string(static_cast<device_kind>(i.entry->device_kind))) +
           ", the device is " + std::string(to_string(static_cast<device_kind>(device.kind)));
  return false;
}

// A composite needs to know whether its steps may fall back to the host; other implementations run where they
// say. What its walk found is kept in `outline`, where given.
bool accepts(const portile_device_info& device, const implementation_ref& i, const void* problem,
             std::string& reason, bool host_fallback = false, composition::outline* outline = nullptr) {
  if (!fits_kind(device, i, reason)) return false;
  if (const composition* c = detail::composition_of(i.entry)) {
    composition::outline o = c->outline_on(device, problem, host_fallback);
    const bool yes = o.refusal.empty();
    reason = yes ? "yes: runs " + o.steps : o.refusal;
    if (outline) *outline = std::move(o);
    return yes;
  }
  char text[512] = "";
  const bool yes = i.entry->supports(&device, problem, text, sizeof text) != 0;
  text[sizeof text - 1] = 0;
  reason = yes ? "yes" : *text ? text : "refused without a reason";
  return yes;
}

// The host implementation that runs on copies when the device has none; entry null: there is none either.
implementation_ref fallback_for(const op_info& op, const void* problem, std::string_view force) {
  for (const implementation_ref& i : implementations(op.name))
    if (std::string reason; i.entry->device_kind != any_device_kind &&
                            (force.empty() || force == i.entry->name) &&
                            accepts(detail::cpu_info(), i, problem, reason))
      return i;
  return {};
}

// Every tensor must lie on the queue's device, or in host memory where the field says so.
void check_devices(const op_info& op, const void* problem, device where) {
  const auto one = [&](const field_info& f, const tensor& t, std::int64_t index) {
    const device want = f.on_host ? device{} : where;
    if (!t.defined() || t.device == want) return;
    throw error(status_code::invalid_argument,
                op.name + ": " + f.name + (index < 0 ? "" : "[" + std::to_string(index) + "]") +
                    ".device = " + t.device.text() + ": must be " +
                    (f.on_host ? "cpu (host memory)" : want.text() + ", the queue's device"));
  };
  for (const field_info& f : op.fields) {
    if (f.kind == field_kind::tensor) one(f, f.tensor_in(problem), -1);
    if (f.kind == field_kind::tensor_list)
      for (std::int64_t i = 0; i < f.list_in(problem).size; ++i) one(f, f.list_in(problem)[i], i);
  }
}

bool same_view(const tensor& a, const tensor& b) {
  // The low address bits decide which vector width a launch may use, so they belong to the metadata.
  constexpr std::uintptr_t low = 255;
  if (a.dtype != b.dtype || a.rank != b.rank) return false;
  if (!a.defined()) return true;
  for (int i = 0; i < std::min(a.rank, max_rank); ++i)
    if (a.extent(i) != b.extent(i) || a.stride(i) != b.stride(i)) return false;
  return a.device == b.device && (a.data == nullptr) == (b.data == nullptr) &&
         (reinterpret_cast<std::uintptr_t>(a.data) & low) == (reinterpret_cast<std::uintptr_t>(b.data) & low);
}

bool same_list(const tensor_list& a, const tensor_list& b) {
  if (a.size != b.size || (a.data == nullptr) != (b.data == nullptr)) return false;
  for (std::int64_t i = 0; i < std::min(a.size, tensor_list::max_size); ++i)
    if (!same_view(a[i], b[i])) return false;
  return true;
}

// First field in which two problems differ beyond pointers; null when none does. Passed on every run: no
// text, no allocation.
const field_info* difference(const op_info& op, const void* a, const void* b) {
  for (const field_info& f : op.fields) {
    const bool same = f.kind == field_kind::tensor        ? same_view(f.tensor_in(a), f.tensor_in(b))
                      : f.kind == field_kind::tensor_list ? same_list(f.list_in(a), f.list_in(b))
                                                          : f.same_attribute(a, b);
    if (!same) return &f;
  }
  return nullptr;
}

// A copy of a problem that owns the arrays of its lists: the caller's may be gone by the time of the next
// comparison.
struct problem_copy {
  std::shared_ptr<void> problem;
  std::vector<std::vector<tensor>> lists;

  problem_copy(const op_info& op, const void* from) : problem(op.make()) {
    op.assign(problem.get(), from);
    for (const field_info& f : op.fields)
      if (f.kind == field_kind::tensor_list) {
        tensor_list& l = f.list_in(problem.get());
        if (!l.data || l.size <= 0) continue;
        lists.emplace_back(l.data, l.data + l.size);
        l.data = lists.back().data();
      }
  }
};

}  // namespace

void set_forced_implementations(std::string_view list) {
  rule_list rules = parse_rules("set_forced_implementations", list);
  forced_rules& f = forced();
  const std::lock_guard lock(f.mutex);
  f.rules = std::move(rules);
  f.broken.clear();
  f.any.store(!f.rules.empty(), std::memory_order_release);
}

namespace detail {

struct plan_state {
  plan_state(const op_info& o, const void* p) : op(&o), copy(o, p) {}

  const op_info* op;
  problem_copy copy;
  implementation_ref choice;
  std::uint64_t workspace_bytes = 0;
  std::uint64_t registry_version = 0;
  std::string forced;
  bool fallback = false;                   ///< the host reference, on copies
  const composition* composite = nullptr;  ///< runs other operations on the queue
  composition::outline outline;            ///< of the composite
  // Of a `plan` object: what its runs use.
  std::int64_t max_blocks = 0;
  void* workspace = nullptr;
  std::size_t given_bytes = 0;
};

explanation explain(const portile_device_info& device, std::string_view device_text, const op_info& op,
                    const void* problem, bool host_fallback) {
  explanation e;
  e.op = op.name;
  e.device = device_text;
  e.error = check(op, problem).text();
  const std::string force = forced_for(op.name);
  for (const implementation_ref& i : implementations(op.name)) {
    candidate c{i.entry->name, i.backend->name, false, {}};
    // `supports` functions may rely on what check() promises, so a bad problem is not shown to them.
    if (e.error.empty())
      c.accepted = accepts(device, i, problem, c.reason, host_fallback);
    else if (fits_kind(device, i, c.reason))
      c.reason = "not asked: the problem is bad";
    if (c.accepted && !force.empty() && force != c.implementation) {
      c.accepted = false;
      c.reason = "not the forced one, " + force;
    }
    if (c.accepted && e.chosen.empty()) e.chosen = c.implementation;
    e.candidates.push_back(std::move(c));
  }
  if (host_fallback && e.chosen.empty() && e.error.empty())
    if (const implementation_ref i = fallback_for(op, problem, force); i.entry) {
      e.chosen = i.entry->name;
      for (candidate& c : e.candidates)
        if (c.implementation == e.chosen) c.reason += "; taken on copies (host_fallback)";
    }
  return e;
}

namespace {

std::string refusal_text(const portile_device_info& device, std::string_view device_text, const op_info& op,
                         const void* problem, std::string_view force) {
  std::string text = op.name + ": device = " + std::string(device_text) + " (" + device.arch + "): ";
  text += force.empty() ? "no implementation takes this problem"
                        : "the forced implementation '" + std::string(force) + "' does not take it";
  bool any = false, found = false;
  for (const implementation_ref& i : implementations(op.name)) {
    std::string reason;
    const bool yes = accepts(device, i, problem, reason);
    any = true;
    found = found || force == i.entry->name;
    text += std::string("\n  ") + i.entry->name + ": " +
            (yes && force != i.entry->name ? "not the forced one" : reason);
  }
  if (!any) text += "\n  no loaded backend has an implementation";
  if (any && !force.empty() && !found)
    text += "\n  " + std::string(force) + ": no loaded backend has an implementation of that name";
  return text;
}

}  // namespace

resolution resolve(const portile_device_info& device, std::string_view device_text, const op_info& op,
                   const void* problem, std::string_view force, bool host_fallback) {
  resolution r;
  for (const implementation_ref& i : implementations(op.name)) {
    std::string reason;
    const bool wanted = force.empty() || force == i.entry->name;
    const bool yes = accepts(device, i, problem, reason, host_fallback, &r.outline);
    if (log_enabled("dispatch"))
      log("dispatch",
          op.name + ": " + i.entry->name + ": " + (yes && !wanted ? "not the forced one" : reason));
    if (yes && wanted) {
      r.choice = i;
      break;
    }
  }
  if (!r.choice.entry && host_fallback && device.kind != PORTILE_DEVICE_CPU) {
    r.choice = fallback_for(op, problem, force);
    r.fallback = r.choice.entry != nullptr;
  }
  if (!r.choice.entry) {
    r.refusal = refusal_text(device, device_text, op, problem, force);
    return r;
  }
  if (composition_of(r.choice.entry)) {
    r.workspace_bytes = r.outline.workspace_bytes();
  } else if (r.choice.entry->workspace) {
    if (r.choice.entry->workspace(r.fallback ? &cpu_info() : &device, problem, &r.workspace_bytes) != 0)
      throw error(status_code::internal,
                  op.name + " " + r.choice.entry->name + ": cannot size its workspace");
  }
  return r;
}

namespace {

std::shared_ptr<plan_state> choose(queue_state& q, const op_info& op, const void* problem,
                                   std::string_view force) {
  // Read first: a plug-in loaded meanwhile makes the next run choose again.
  const std::uint64_t version = registry_version();
  check(op, problem).or_throw();
  check_devices(op, problem, q.where);
  auto s = std::make_shared<plan_state>(op, problem);
  s->forced = force;
  resolution r = resolve(*q.info, q.where.text(), op, problem, force, q.properties.host_fallback);
  if (!r.choice.entry) throw error(status_code::unsupported, r.refusal);
  s->choice = r.choice;
  s->fallback = r.fallback;
  s->workspace_bytes = r.workspace_bytes;
  s->composite = composition_of(r.choice.entry);
  s->outline = std::move(r.outline);
  s->registry_version = version;
  return s;
}

// The caller's memory or the queue's arena.
void* device_workspace(queue_state& q, const plan_state& s, const run_options& o) {
  if (!o.workspace) return q.workspace(s.workspace_bytes);
  if (o.workspace_bytes < s.workspace_bytes)
    throw error(status_code::invalid_argument,
                s.op->name + ": workspace_bytes = " + std::to_string(o.workspace_bytes) +
                    ": must be at least " + std::to_string(s.workspace_bytes));
  if (reinterpret_cast<std::uintptr_t>(o.workspace) % 256 != 0)
    throw error(status_code::invalid_argument,
                s.op->name + ": workspace = address " +
                    std::to_string(reinterpret_cast<std::uintptr_t>(o.workspace)) +
                    ": must be 256-byte aligned");
  return o.workspace;
}

void launch(queue_state& q, const plan_state& s, const void* problem, const run_options& o,
            std::uint64_t* trap) {
  portile_launch l{};
  l.device = s.fallback ? &cpu_info() : q.info;
  l.stream = s.fallback ? nullptr : q.stream;
  l.trap = trap;
  l.num_sms = q.properties.num_sms;
  l.pdl = q.properties.pdl;
  l.max_blocks = o.max_blocks;
  std::vector<char> host_workspace;
  if (s.workspace_bytes > 0) {
    if (s.fallback) {
      host_workspace.resize(s.workspace_bytes + 256);
      l.workspace =
          host_workspace.data() + (256 - reinterpret_cast<std::uintptr_t>(host_workspace.data()) % 256);
    } else {
      l.workspace = device_workspace(q, s, o);
    }
    l.workspace_bytes = s.workspace_bytes;
  }
  if (log_enabled("launch")) log("launch", s.op->name + " " + s.choice.entry->name + " on " + q.where.text());
  char text[512];  // not cleared as a whole: this is every launch
  text[0] = 0;
  const std::int32_t code = s.choice.entry->launch(&l, problem, text, sizeof text);
  text[sizeof text - 1] = 0;
  if (code != 0)
    throw error(failure_code(code),
                s.op->name + " " + s.choice.entry->name + ": " + (*text ? text : "launch failed"));
}

// Calls f(byte offset, bytes) for every gapless piece of a tensor, longest first dimension inside.
template <class F>
void for_each_piece(const tensor& t, F f) {
  if (t.span() == 0) return;
  std::vector<std::pair<std::int64_t, std::int64_t>> steps;  // stride, extent
  for (int i = 0; i < t.rank; ++i)
    if (t.extent(i) > 1) steps.emplace_back(t.stride(i), t.extent(i));
  std::sort(steps.begin(), steps.end());
  std::int64_t run = 1;
  std::size_t inner = 0;
  while (inner < steps.size() && steps[inner].first == run) run *= steps[inner++].second;
  const std::int64_t size = size_of(t.dtype);
  std::vector<std::int64_t> index(steps.size(), 0);
  for (std::int64_t offset = 0;;) {
    f(offset * size, run * size);
    std::size_t d = inner;
    for (; d < steps.size(); ++d) {
      offset += steps[d].first;
      if (++index[d] < steps[d].second) break;
      offset -= steps[d].first * steps[d].second;
      index[d] = 0;
    }
    if (d == steps.size()) return;
  }
}

// Runs the host implementation on copies. Tensors whose bytes overlap share one copy, as slices of one buffer
// do; only the elements of outputs are written back, so what lies between their rows may change meanwhile.
void launch_fallback(queue_state& q, const plan_state& s, const void* problem, const run_options& o) {
  if (q.capturing())
    throw error(status_code::capture_unsafe,
                s.op->name + ": host_fallback copies through the host: not inside a capture");
  if (log_enabled("dispatch"))
    log("dispatch", s.op->name + ": no implementation on " + q.where.text() + ": host_fallback to " +
                        s.choice.entry->name);
  problem_copy shadow(*s.op, problem);
  struct moved {
    tensor* view;
    std::uintptr_t home;
    bool is_output;
  };
  struct region {
    std::uintptr_t begin, end;
    std::vector<char> bytes;
    char* copy;
  };
  std::vector<moved> tensors;
  std::vector<region> regions;
  const auto take = [&](const field_info& f, tensor& t) {
    if (!t.defined() || t.device == device{}) return;
    const auto begin = reinterpret_cast<std::uintptr_t>(t.data);
    tensors.push_back({&t, begin, f.role != field_role::in});
    if (const std::int64_t bytes = t.span() * size_of(t.dtype))
      regions.push_back({begin, begin + static_cast<std::uintptr_t>(bytes), {}, nullptr});
  };
  auto list = shadow.lists.begin();
  for (const field_info& f : s.op->fields) {
    if (f.kind == field_kind::tensor) take(f, f.tensor_in(shadow.problem.get()));
    if (const tensor_list& l = f.list_in(shadow.problem.get());
        f.kind == field_kind::tensor_list && l.data && l.size > 0)
      for (tensor& t : *list++) take(f, t);
  }
  std::sort(regions.begin(), regions.end(),
            [](const region& a, const region& b) { return a.begin < b.begin; });
  std::size_t count = 0;
  for (region& r : regions) {
    if (count > 0 && r.begin < regions[count - 1].end)
      regions[count - 1].end = std::max(regions[count - 1].end, r.end);
    else
      std::swap(regions[count++], r);
  }
  regions.resize(count);
  const int ordinal = q.where.ordinal();
  for (region& r : regions) {
    // The copy keeps the address modulo 256, which an implementation may have looked at.
    const std::uint64_t bytes = r.end - r.begin;
    r.bytes.resize(bytes + 512);
    r.copy = r.bytes.data() + (256 - reinterpret_cast<std::uintptr_t>(r.bytes.data()) % 256) + r.begin % 256;
    call(q.runtime->copy, ordinal, q.stream, static_cast<void*>(r.copy),
         reinterpret_cast<const void*>(r.begin), bytes);
  }
  for (const moved& m : tensors) {
    m.view->device = device{};
    for (const region& r : regions)
      if (m.home >= r.begin && m.home < r.end && m.view->span() > 0)
        m.view->data = r.copy + (m.home - r.begin);
  }
  call(q.runtime->stream_wait, ordinal, q.stream);
  std::uint64_t trap = ~std::uint64_t{0};
  launch(q, s, shadow.problem.get(), o, q.properties.checked ? &trap : nullptr);
  for (const moved& m : tensors)
    if (m.is_output)
      for_each_piece(*m.view, [&](std::int64_t offset, std::int64_t bytes) {
        call(q.runtime->copy, ordinal, q.stream,
             reinterpret_cast<void*>(m.home + static_cast<std::uintptr_t>(offset)),
             static_cast<const void*>(static_cast<char*>(m.view->data) + offset),
             static_cast<std::uint64_t>(bytes));
      });
  if (std::uint64_t* word = trap != ~std::uint64_t{0} ? q.next_trap(*s.op) : nullptr)
    call(q.runtime->copy, ordinal, q.stream, static_cast<void*>(word), static_cast<const void*>(&trap),
         static_cast<std::uint64_t>(sizeof trap));
  call(q.runtime->stream_wait, ordinal, q.stream);
}

void submit(queue& queue, const plan_state& s, const void* problem, const run_options& o) {
  queue_state& q = queue.state();
  if (s.composite) {
    if (log_enabled("launch"))
      log("launch", s.op->name + " " + s.choice.entry->name + " on " + q.where.text());
    void* const memory = s.workspace_bytes > 0 ? device_workspace(q, s, o) : nullptr;
    return s.composite->run(queue, problem, s.outline, memory, o);
  }
  if (s.fallback) return launch_fallback(q, s, problem, o);
  std::uint64_t* const trap = q.next_trap(*s.op);
  try {
    launch(q, s, problem, o, trap);
  } catch (...) {
    q.drop_trap(trap);
    throw;
  }
}

}  // namespace

void run(queue& queue, const op_info& op, const void* problem, const run_options& o) {
  queue_state& q = queue.state();
  const std::string force = forced_for(op.name, o.implementation);
  const std::lock_guard lock(q.mutex);
  auto& plans = q.plans[&op];
  const std::uint64_t version = registry_version();
  const auto known = std::find_if(plans.begin(), plans.end(), [&](const auto& s) {
    return s->registry_version == version && s->forced == force &&
           !difference(op, problem, s->copy.problem.get());
  });
  if (known == plans.end()) {
    auto fresh = choose(q, op, problem, force);
    if (plans.size() == queue_state::max_plans) plans.pop_back();
    plans.insert(plans.begin(), std::move(fresh));
  } else if (known != plans.begin()) {
    std::rotate(plans.begin(), known, known + 1);
  }
  // Held by value: a log sink or a nested run on this queue may change the list.
  const std::shared_ptr<plan_state> s = plans.front();
  submit(queue, *s, problem, o);
}

}  // namespace detail

plan::plan(queue& q, const op_info& op, const void* problem, const run_options& o) : queue_(q) {
  detail::queue_state& s = q.state();
  const std::string force = forced_for(op.name, o.implementation);
  const std::lock_guard lock(s.mutex);
  state_ = detail::choose(s, op, problem, force);
  state_->max_blocks = o.max_blocks;
  state_->workspace = o.workspace;
  state_->given_bytes = o.workspace_bytes;
  if (!o.workspace && !state_->fallback && state_->workspace_bytes) s.workspace(state_->workspace_bytes);
}

std::string_view plan::implementation() const { return state_->choice.entry->name; }
std::string_view plan::backend() const { return state_->choice.backend->name; }
bool plan::host_fallback() const { return state_->fallback; }
std::size_t plan::workspace_bytes() const { return state_->workspace_bytes; }

void plan::run_erased(const op_info& op, const void* problem) {
  if (&op != state_->op)
    throw error(status_code::invalid_argument,
                "plan of " + state_->op->name + ": run with a problem of " + op.name);
  detail::queue_state& q = queue_.state();
  const std::lock_guard lock(q.mutex);
  if (const field_info* f = difference(op, problem, state_->copy.problem.get()))
    throw error(
        status_code::invalid_argument,
        op.name + ": " + f->name +
            ": differs from the planned problem in more than the pointer (addresses must agree modulo 256)");
  run_options o;
  o.max_blocks = state_->max_blocks;
  o.workspace = state_->workspace;
  o.workspace_bytes = state_->given_bytes;
  detail::submit(queue_, *state_, problem, o);
}

std::string explanation::text() const {
  std::string s = op + " on " + device + "\n";
  if (!error.empty()) s += "  error: " + error + "\n";
  for (const candidate& c : candidates)
    s += "  " + c.implementation + " (" + c.backend + "): " + (c.accepted ? c.reason : "no: " + c.reason) +
         "\n";
  if (candidates.empty()) s += "  no loaded backend has an implementation\n";
  return s + "  chosen: " + (chosen.empty() ? "none" : chosen) + "\n";
}

std::ostream& operator<<(std::ostream& os, const explanation& e) { return os << e.text(); }

}  // namespace portile
