#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <ostream>

#include <portile/core/dispatch.hpp>
#include <portile/core/log.hpp>
#include <portile/core/queue_state.hpp>
#include <portile/core/registry.hpp>

namespace portile {

bool glob_match(std::string_view p, std::string_view t) {
  if (p.empty()) return t.empty();
  if (p[0] == '*') return glob_match(p.substr(1), t) || (!t.empty() && glob_match(p, t.substr(1)));
  return !t.empty() && (p[0] == '?' || p[0] == t[0]) && glob_match(p.substr(1), t.substr(1));
}

namespace {

struct forced_rules {
  std::mutex mutex;
  bool from_environment = true;
  std::vector<std::pair<std::string, std::string>> rules;
  std::uint64_t version = 1;
};

void parse_rules(forced_rules& f, std::string_view list) {
  f.rules.clear();
  while (!list.empty()) {
    const auto comma = list.find(',');
    const std::string_view one = list.substr(0, comma);
    const auto eq = one.find('=');
    if (!one.empty()) {
      if (eq == std::string_view::npos || eq == 0 || eq + 1 == one.size())
        throw error(status_code::invalid_argument, "PORTILE_IMPL: '" + std::string(one) + "': must be op=implementation");
      f.rules.emplace_back(one.substr(0, eq), one.substr(eq + 1));
    }
    list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
  }
  ++f.version;
}

forced_rules& forced() {
  static forced_rules* f = new forced_rules;
  const std::lock_guard lock(f->mutex);
  if (f->from_environment) {
    f->from_environment = false;
    if (const char* e = std::getenv("PORTILE_IMPL")) parse_rules(*f, e);
  }
  return *f;
}

std::string forced_for(std::string_view op) {
  forced_rules& f = forced();
  const std::lock_guard lock(f.mutex);
  for (const auto& [pattern, implementation] : f.rules)
    if (glob_match(pattern, op)) return implementation;
  return {};
}

bool accepts(const portile_device_info& device, const implementation_ref& i, const void* problem, std::string& reason) {
  if (i.entry->device_kind != device.kind) {
    reason = "runs on " + std::string(to_string(static_cast<device_kind>(i.entry->device_kind))) + ", the device is " +
             std::string(to_string(static_cast<device_kind>(device.kind)));
    return false;
  }
  char text[512] = "";
  const bool yes = i.entry->supports(&device, problem, text, sizeof text) != 0;
  reason = yes ? "yes" : *text ? text : "refused without a reason";
  return yes;
}

// Every tensor must lie on the queue's device, or in host memory where the field says so.
void check_devices(const op_info& op, const void* problem, device where) {
  const auto one = [&](const field_info& f, const tensor& t) {
    if (!t.defined()) return;
    const device want = f.on_host ? device{} : where;
    if (t.device != want)
      throw error(status_code::invalid_argument, op.name + ": " + f.name + ".device = " + t.device.text() + ": must be " +
                                                     (f.on_host ? "cpu (host memory)" : want.text() + ", the queue's device"));
  };
  for (const field_info& f : op.fields) {
    if (f.kind == field_kind::tensor) one(f, f.tensor_in(problem));
    if (f.kind == field_kind::tensor_list)
      for (std::int64_t i = 0; i < f.list_in(problem).size; ++i) one(f, f.list_in(problem)[i]);
  }
}

bool same_view(const tensor& a, const tensor& b) {
  // The low address bits decide which vector width a launch may use, so they belong to the metadata.
  constexpr std::uintptr_t low = 255;
  return a.dtype == b.dtype && a.rank == b.rank && a.extents == b.extents && a.strides == b.strides && a.device == b.device &&
         (a.data == nullptr) == (b.data == nullptr) &&
         (reinterpret_cast<std::uintptr_t>(a.data) & low) == (reinterpret_cast<std::uintptr_t>(b.data) & low);
}

// First field in which two problems differ beyond pointers; null when none does.
const field_info* difference(const op_info& op, const void* a, const void* b) {
  for (const field_info& f : op.fields) {
    if (f.kind == field_kind::tensor) {
      if (!same_view(f.tensor_in(a), f.tensor_in(b))) return &f;
    } else if (f.kind == field_kind::tensor_list) {
      return &f;  // the list's storage is the caller's: always checked anew
    } else if (f.attribute_text(a) != f.attribute_text(b)) {
      return &f;
    }
  }
  return nullptr;
}

}  // namespace

void set_forced_implementations(std::string_view list) {
  forced_rules& f = forced();
  const std::lock_guard lock(f.mutex);
  parse_rules(f, list);
}

namespace detail {

struct plan_state {
  const op_info* op = nullptr;
  std::shared_ptr<void> problem;
  implementation_ref choice;
  std::uint64_t workspace_bytes = 0;
  std::uint64_t registry_version = 0, forced_version = 0;
  std::string forced;
  bool fallback = false;  ///< the host reference, on copies
};

explanation explain(const portile_device_info& device, std::string_view device_text, const op_info& op, const void* problem) {
  explanation e;
  e.op = op.name;
  e.device = device_text;
  e.error = check(op, problem).text();
  const std::string force = forced_for(op.name);
  for (const implementation_ref& i : implementations(op.name)) {
    candidate c{i.entry->name, i.backend->name, false, {}};
    c.accepted = accepts(device, i, problem, c.reason);
    if (c.accepted && !force.empty() && force != c.implementation) {
      c.accepted = false;
      c.reason = "not the forced one, " + force;
    }
    if (c.accepted && e.chosen.empty() && e.error.empty()) e.chosen = c.implementation;
    e.candidates.push_back(std::move(c));
  }
  return e;
}

namespace {

std::string refusal_text(const op_info& op, const queue_state& q, const void* problem, std::string_view force) {
  std::string text = op.name + ": device = " + q.where.text() + " (" + q.info->arch + "): ";
  text += force.empty() ? "no implementation takes this problem" : "the forced implementation '" + std::string(force) + "' does not take it";
  bool any = false;
  for (const implementation_ref& i : implementations(op.name)) {
    std::string reason;
    const bool yes = accepts(*q.info, i, problem, reason);
    if (!force.empty() && force != i.entry->name) continue;
    any = true;
    text += std::string("\n  ") + i.entry->name + ": " + (yes ? "yes" : reason);
  }
  if (!any) text += force.empty() ? "\n  no backend has one" : "\n  no backend has an implementation of that name";
  return text;
}

std::shared_ptr<plan_state> choose(queue_state& q, const op_info& op, const void* problem, std::string_view force) {
  check(op, problem).or_throw();
  check_devices(op, problem, q.where);
  auto s = std::make_shared<plan_state>();
  s->op = &op;
  s->problem = op.make();
  op.assign(s->problem.get(), problem);
  s->forced = force;
  for (const implementation_ref& i : implementations(op.name)) {
    std::string reason;
    const bool wanted = force.empty() || force == i.entry->name;
    const bool yes = accepts(*q.info, i, problem, reason);
    if (log_enabled("dispatch"))
      log("dispatch", op.name + ": " + i.entry->name + ": " + (yes && !wanted ? "not the forced one" : reason));
    if (yes && wanted) {
      s->choice = i;
      break;
    }
  }
  if (!s->choice.entry && q.properties.host_fallback && q.where.kind() != device_kind::cpu)
    for (const implementation_ref& i : implementations(op.name))
      if (std::string reason; (force.empty() || force == i.entry->name) && accepts(cpu_info(), i, problem, reason)) {
        s->choice = i;
        s->fallback = true;
        log("dispatch", op.name + ": no implementation on " + q.where.text() + ": host_fallback to " + i.entry->name);
        break;
      }
  if (!s->choice.entry) throw error(status_code::unsupported, refusal_text(op, q, problem, force));
  if (s->choice.entry->workspace) {
    const portile_device_info& d = s->fallback ? cpu_info() : *q.info;
    if (s->choice.entry->workspace(&d, problem, &s->workspace_bytes) != 0)
      throw error(status_code::internal, op.name + " " + s->choice.entry->name + ": cannot size its workspace");
  }
  s->registry_version = registry_version();
  return s;
}

void launch(queue_state& q, const plan_state& s, const void* problem, const run_options& o, std::uint64_t* trap) {
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
      l.workspace = host_workspace.data() + (256 - reinterpret_cast<std::uintptr_t>(host_workspace.data()) % 256);
    } else if (o.workspace) {
      if (o.workspace_bytes < s.workspace_bytes || reinterpret_cast<std::uintptr_t>(o.workspace) % 256 != 0)
        throw error(status_code::invalid_argument, s.op->name + ": workspace_bytes = " + std::to_string(o.workspace_bytes) +
                                                       ": must be at least " + std::to_string(s.workspace_bytes) + ", 256-byte aligned");
      l.workspace = o.workspace;
    } else {
      l.workspace = q.workspace(s.workspace_bytes);
    }
    l.workspace_bytes = s.workspace_bytes;
  }
  if (log_enabled("launch")) log("launch", s.op->name + " " + s.choice.entry->name + " on " + q.where.text());
  char text[512] = "";
  const std::int32_t code = s.choice.entry->launch(&l, problem, text, sizeof text);
  if (code != 0)
    throw error(static_cast<status_code>(code), s.op->name + " " + s.choice.entry->name + ": " + (*text ? text : "launch failed"));
}

// Copies every tensor's span to the host, runs there, and copies outputs back.
void launch_fallback(queue_state& q, const plan_state& s, const void* problem, const run_options& o) {
  if (q.capturing())
    throw error(status_code::capture_unsafe, s.op->name + ": host_fallback copies through the host: not inside a capture");
  std::shared_ptr<void> shadow = s.op->make();
  s.op->assign(shadow.get(), problem);
  struct moved {
    std::vector<char> bytes;
    void* home;
    bool back;
  };
  std::vector<moved> buffers;
  std::vector<std::vector<tensor>> lists;
  buffers.reserve(s.op->fields.size() * 8);
  const auto move = [&](tensor& t, bool back) {
    if (!t.defined() || t.device == device{}) return;
    // The copy keeps the address modulo 256, which an implementation may have looked at.
    const std::size_t bytes = static_cast<std::size_t>(t.span() * size_of(t.dtype));
    const std::size_t low = reinterpret_cast<std::uintptr_t>(t.data) % 256;
    buffers.push_back({std::vector<char>(bytes + 512), t.data, back});
    char* base = buffers.back().bytes.data();
    char* p = base + (256 - reinterpret_cast<std::uintptr_t>(base) % 256) + low;
    if (bytes) call(q.runtime->copy, q.where.ordinal(), q.stream, static_cast<void*>(p), static_cast<const void*>(t.data), static_cast<std::uint64_t>(bytes));
    t.data = p;
    t.device = device{};
  };
  std::vector<std::pair<tensor, void*>> results;
  const auto take = [&](const field_info& f, tensor& t) {
    void* home = t.data;
    const bool on_device = t.defined() && t.device != device{};
    move(t, f.role != field_role::in);
    if (on_device && f.role != field_role::in) results.emplace_back(t, home);
  };
  for (const field_info& f : s.op->fields) {
    if (f.kind == field_kind::tensor) take(f, f.tensor_in(shadow.get()));
    if (f.kind == field_kind::tensor_list) {
      tensor_list& l = f.list_in(shadow.get());
      lists.emplace_back(l.data, l.data + l.size);
      for (tensor& t : lists.back()) take(f, t);
      l.data = lists.back().data();
    }
  }
  call(q.runtime->stream_wait, q.where.ordinal(), q.stream);
  std::uint64_t trap = ~std::uint64_t{0};
  launch(q, s, shadow.get(), o, q.properties.checked ? &trap : nullptr);
  for (const auto& [t, home] : results)
    if (const auto bytes = static_cast<std::uint64_t>(t.span() * size_of(t.dtype)))
      call(q.runtime->copy, q.where.ordinal(), q.stream, home, static_cast<const void*>(t.data), bytes);
  if (std::uint64_t* word = trap != ~std::uint64_t{0} ? q.next_trap(*s.op) : nullptr)
    call(q.runtime->copy, q.where.ordinal(), q.stream, static_cast<void*>(word), static_cast<const void*>(&trap), sizeof trap);
  call(q.runtime->stream_wait, q.where.ordinal(), q.stream);
}

void submit(queue_state& q, const plan_state& s, const void* problem, const run_options& o) {
  if (s.fallback)
    launch_fallback(q, s, problem, o);
  else
    launch(q, s, problem, o, q.next_trap(*s.op));
}

std::uint64_t forced_version() {
  forced_rules& f = forced();
  const std::lock_guard lock(f.mutex);
  return f.version;
}

}  // namespace

void run(queue& queue, const op_info& op, const void* problem, const run_options& o) {
  queue_state& q = queue.state();
  const std::lock_guard lock(q.mutex);
  std::shared_ptr<plan_state>& last = q.last_plans[&op];
  const std::uint64_t version = forced_version();
  const bool reusable = last && last->forced_version == version && last->registry_version == registry_version() &&
                        (o.implementation.empty() || o.implementation == last->forced) &&
                        (o.implementation.empty() == last->forced.empty() || !forced_for(op.name).empty()) &&
                        !difference(op, problem, last->problem.get());
  if (!reusable) {
    const std::string force = o.implementation.empty() ? forced_for(op.name) : std::string(o.implementation);
    last = choose(q, op, problem, force);
    last->forced_version = version;
  }
  submit(q, *last, problem, o);
}

}  // namespace detail

plan::plan(queue& q, const op_info& op, const void* problem, const run_options& o) : queue_(q) {
  detail::queue_state& s = q.state();
  const std::lock_guard lock(s.mutex);
  state_ = detail::choose(s, op, problem, o.implementation.empty() ? forced_for(op.name) : std::string(o.implementation));
  if (!o.workspace && !state_->fallback && state_->workspace_bytes) s.workspace(state_->workspace_bytes);
}

std::string_view plan::implementation() const { return state_->choice.entry->name; }
std::string_view plan::backend() const { return state_->choice.backend->name; }
bool plan::host_fallback() const { return state_->fallback; }
std::size_t plan::workspace_bytes() const { return state_->workspace_bytes; }

void plan::run_erased(const op_info& op, const void* problem) {
  if (&op != state_->op)
    throw error(status_code::invalid_argument, "plan of " + state_->op->name + ": run with a problem of " + op.name);
  detail::queue_state& q = queue_.state();
  const std::lock_guard lock(q.mutex);
  if (const field_info* f = difference(op, problem, state_->problem.get())) {
    if (f->kind != field_kind::tensor_list)
      throw error(status_code::invalid_argument, op.name + ": " + f->name + ": differs from the planned problem in more than the pointer (addresses must agree modulo 256)");
    check(op, problem).or_throw();
  }
  detail::submit(q, *state_, problem, {});
}

std::string explanation::text() const {
  std::string s = op + " on " + device + "\n";
  if (!error.empty()) s += "  error: " + error + "\n";
  for (const candidate& c : candidates)
    s += "  " + c.implementation + " (" + c.backend + "): " + (c.accepted ? "yes" : "no: " + c.reason) + "\n";
  if (candidates.empty()) s += "  no loaded backend has an implementation\n";
  return s + "  chosen: " + (chosen.empty() ? "none" : chosen) + "\n";
}

std::ostream& operator<<(std::ostream& os, const explanation& e) { return os << e.text(); }

}  // namespace portile
