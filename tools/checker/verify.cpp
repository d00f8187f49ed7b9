#include "verify.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <portile/core/composite.hpp>
#include <portile/core/dispatch.hpp>
#include <portile/core/registry.hpp>

#include "buffer.hpp"
#include "manifest.hpp"
#include "npy.hpp"

namespace portile::golden {
namespace {

// What fills outputs, padding and guards: in the first run NaN in every float format and -1 in every integer,
// in the second something harmless. An element that nobody writes, or a value read out of bounds, differs
// between the runs.
constexpr unsigned char poisons[] = {0xFF, 0x5A, 0x5A};
constexpr std::int64_t few_blocks = 3;  ///< the third run, on devices with a grid, may only launch so many

// Operations that leave the rows outside the mask as they were; elsewhere such rows hold anything.
constexpr std::string_view leaves_other_rows[] = {"gemm.grouped_nt", "quant.swiglu_forward",
                                                  "quant.swiglu_forward_and_per_token_cast"};

struct bad_case : std::runtime_error {
  bad_case(std::string array_name, const std::string& text)
      : std::runtime_error(text), array(std::move(array_name)) {}
  std::string array;
};

std::string list_text(const std::vector<std::int64_t>& v) { return fmt::format("[{}]", fmt::join(v, ", ")); }

std::vector<unsigned char> load(const array_spec& a) {
  npy_array n = read_npy(a.file);
  if (n.storage != npy_storage(a.type))
    throw bad_case(a.name, fmt::format("{} holds {}, {} is stored as {}", a.file.string(), n.storage,
                                       to_string(a.type), npy_storage(a.type)));
  if (n.shape != a.shape)
    throw bad_case(a.name, fmt::format("{} has shape {}, the manifest says {}", a.file.string(),
                                       list_text(n.shape), list_text(a.shape)));
  return std::move(n.bytes);
}

// An argument of the operation: what goes in, what must come out.
struct argument {
  const field_info* field = nullptr;
  const array_spec* spec = nullptr;  ///< dtype, shape, strides
  std::optional<std::vector<unsigned char>> before, expected;
  std::optional<comparison> how;
};

// A case with its arrays read and matched with the operation's fields.
class golden_case {
 public:
  golden_case(const op_info& op, const case_spec& spec) : op_(op), spec_(spec) {
    for (const param_spec& p : spec.params) {
      const field_info* f = op.find(p.name);
      const bool attribute = f && f->kind == field_kind::attribute;
      if (!attribute && !op.is_dimension(p.name) && !op.is_ignored(p.name))
        throw bad_case(
            "", fmt::format("param '{}' is neither an attribute nor a dimension of {}, nor ignored", p.name,
                            op.name));
    }
    for (const array_spec& a : spec.arrays) add(a);
    for (auto& [name, a] : arguments_)
      if (!a.before && !a.expected) throw bad_case(name, "is neither given nor expected");
  }

  const std::map<std::string, argument>& arguments() const { return arguments_; }
  const row_mask* mask(const std::string& name, const std::string& array) const {
    if (name.empty()) return nullptr;
    const auto it = masks_.find(name);
    if (it == masks_.end())
      throw bad_case(array, "its compare names the mask '" + name + "', which is not there");
    return &it->second;
  }
  bool leaves_other_rows() const {
    // Rows without a slot are written (their weight is 0); those without an expert are not.
    const auto given = [&](std::string_view name) {
      return std::any_of(spec_.arrays.begin(), spec_.arrays.end(),
                         [&](const array_spec& a) { return a.name == name; });
    };
    if (given("pos_to_token_topk") && !given("pos_to_expert")) return false;
    return std::find(std::begin(golden::leaves_other_rows), std::end(golden::leaves_other_rows), op_.name) !=
           std::end(golden::leaves_other_rows);
  }

  void set_attributes(any_problem& p) const {
    for (const param_spec& s : spec_.params)
      if (const field_info* f = op_.find(s.name); f && f->kind == field_kind::attribute)
        p.set(s.name, s.value);
  }

  // Dimensions are no inputs: they only have to agree with the shapes.
  void check_dimensions(const any_problem& p) const {
    environment env(op_, p.get());
    bind_dimensions(op_, p.get(), env);
    for (const param_spec& s : spec_.params) {
      const field_info* f = op_.find(s.name);
      if (!op_.is_dimension(s.name) || (f && f->kind == field_kind::attribute)) continue;
      if (const auto known = env.find(s.name)) {
        if (std::to_string(*known) != s.value)
          throw bad_case("", fmt::format("{} = {}: the shapes say {}", s.name, s.value, *known));
      } else {
        check_unbound(p, env, s);
      }
    }
  }

 private:
  // No extent is the dimension itself: with its value every known formula must still give the extents.
  void check_unbound(const any_problem& p, environment env, const param_spec& s) const {
    std::int64_t value = 0;
    try {
      value = std::stoll(s.value);
    } catch (const std::exception&) {
      throw bad_case("", fmt::format("{} = {}: a dimension is a whole number", s.name, s.value));
    }
    env.bind(s.name, value);
    for (const field_info& f : op_.fields) {
      if (f.kind != field_kind::tensor || !f.tensor_in(p.get()).defined()) continue;
      const tensor& t = f.tensor_in(p.get());
      std::string missing;
      const auto e = declared_extents(f, t.dtype, env, missing);
      if (e && static_cast<int>(e->size()) == t.rank && !std::equal(e->begin(), e->end(), t.extents.begin()))
        throw bad_case("", fmt::format("{} = {}: then {} would have the extents {}", s.name, s.value, f.name,
                                       list_text(*e)));
    }
  }

  void add(const array_spec& a) {
    if (a.role == array_role::mask) {
      if (a.type != dtype::boolean || a.shape.empty() || a.shape.size() > 2)
        throw bad_case(a.name, "a mask is a bool of one or two dimensions");
      masks_.emplace(a.name, row_mask{a.shape, load(a)});
      return;
    }
    const field_info* f = op_.find(a.name);
    if (f && f->kind == field_kind::attribute) f = nullptr;
    if (a.role == array_role::info) {
      // An intermediate value: checked where the operation gives it.
      if (f && a.compare && f->role == field_role::out) result(*f, a);
      return;
    }
    if (!f) throw bad_case(a.name, fmt::format("{} has no tensor of this name", op_.name));
    const bool is_result = a.role == array_role::out || a.role == array_role::inout_after;
    if ((a.role == array_role::in) != (f->role == field_role::in))
      throw bad_case(a.name, f->role == field_role::in ? "is an input of the operation"
                                                       : "is a result of the operation");
    if (is_result) return result(*f, a);
    argument& arg = argument_for(*f, a);
    arg.before = load(a);
  }

  argument& argument_for(const field_info& f, const array_spec& a) {
    argument& arg = arguments_[a.name];
    if (arg.spec &&
        (arg.spec->type != a.type || arg.spec->shape != a.shape || arg.spec->strides != a.strides))
      throw bad_case(a.name, "differs in type, shape or strides before and after");
    arg.field = &f;
    arg.spec = &a;
    return arg;
  }
  void result(const field_info& f, const array_spec& a) {
    argument& arg = argument_for(f, a);
    arg.expected = load(a);
    arg.how = a.compare;
  }

  const op_info& op_;
  const case_spec& spec_;
  std::map<std::string, argument> arguments_;
  std::map<std::string, row_mask> masks_;
};

// True when a tensor_list field takes the array's first dimension as the list.
bool unstacks(const field_info& f, const std::vector<std::int64_t>& shape) {
  const auto rank_allowed = [&](std::size_t rank) {
    return std::any_of(f.shape.alternatives.begin(), f.shape.alternatives.end(),
                       [&](const shape_spec::alternative& a) {
                         return a.open ? rank >= a.extents.size() : rank == a.extents.size();
                       });
  };
  return !rank_allowed(shape.size()) && !shape.empty() && rank_allowed(shape.size() - 1);
}

// The problem of a case over buffers on one device.
class bound_case {
 public:
  bound_case(const op_info& op, const golden_case& golden, queue& q) : problem_(op) {
    golden.set_attributes(problem_);
    for (const auto& [name, a] : golden.arguments()) {
      const device where = a.field->on_host ? device{} : q.get_device();
      auto buffer = std::make_unique<guarded_buffer>(
          q, placement{a.spec->type, a.spec->shape, a.spec->strides}, a.field->on_host);
      const std::span<const std::int64_t> shape(a.spec->shape), strides(a.spec->strides);
      if (a.field->kind == field_kind::tensor_list)
        bind_list(*a.field, name, a, buffer->data(), where);
      else
        a.field->tensor_in(problem_.get()) = view(name, buffer->data(), a.spec->type, shape, strides, where);
      buffers_.emplace_back(name, std::move(buffer));
    }
  }

  const any_problem& problem() const { return problem_; }
  std::vector<std::pair<std::string, std::unique_ptr<guarded_buffer>>>& buffers() { return buffers_; }

 private:
  static tensor view(const std::string& name, void* data, dtype type, std::span<const std::int64_t> shape,
                     std::span<const std::int64_t> strides, device where) {
    if (shape.size() > static_cast<std::size_t>(max_rank))
      throw bad_case(name, fmt::format("has rank {}, a tensor has at most {}", shape.size(), max_rank));
    return make_tensor(data, type, shape, strides, where);
  }
  void bind_list(const field_info& f, const std::string& name, const argument& a, void* data, device where) {
    const std::span<const std::int64_t> shape(a.spec->shape), strides(a.spec->strides);
    std::vector<tensor>& list = *lists_.emplace_back(std::make_unique<std::vector<tensor>>());
    if (unstacks(f, a.spec->shape)) {
      for (std::int64_t i = 0; i < shape[0]; ++i)
        list.push_back(view(name, static_cast<char*>(data) + i * strides[0] * size_of(a.spec->type),
                            a.spec->type, shape.subspan(1), strides.subspan(1), where));
    } else {
      list.push_back(view(name, data, a.spec->type, shape, strides, where));
    }
    f.list_in(problem_.get()) = {list.data(), static_cast<std::int64_t>(list.size())};
  }

  any_problem problem_;
  std::vector<std::pair<std::string, std::unique_ptr<guarded_buffer>>> buffers_;
  std::vector<std::unique_ptr<std::vector<tensor>>> lists_;
};

class runner {
 public:
  explicit runner(const verify_options& o) : options_(o) {}

  verify_result run() {
    bool any_implementation = options_.implementation.empty();
    for (const auto& file : find_manifests(options_.cases)) {
      if (!glob_match(options_.op, op_of(file))) continue;
      const manifest m = read_manifest(file);
      const op_info* op = find_operation(m.op);
      if (!m.broken.empty()) {
        ++result_.cases;
        ++result_.failed;
        report({m.op,
                "",
                "",
                "",
                {},
                "",
                "",
                "",
                "",
                m.file.string() + ": " + m.broken,
                command(m.op, "", "", {})});
        any_implementation = true;
        continue;
      }
      for (const case_spec& c : m.cases) {
        if (!glob_match(options_.case_name, c.name)) continue;
        ++result_.cases;
        run_case(m, op, c, any_implementation);
      }
    }
    result_.implementation_known = any_implementation;
    return std::move(result_);
  }

 private:
  std::string command(const std::string& op, const std::string& c, const std::string& implementation,
                      std::optional<device> where) const {
    std::string s = fmt::format("portile verify --cases {} --op '{}'", options_.cases.string(), op);
    if (!c.empty()) s += fmt::format(" --case '{}'", c);
    if (!implementation.empty()) s += " --impl " + implementation;
    if (where) s += " --device " + where->text();
    return s;
  }
  void report(failure f) {
    result_.failures.push_back(std::move(f));
    if (options_.on_failure) options_.on_failure(result_.failures.back());
  }
  void report_skip(skip s) {
    ++result_.skipped;
    result_.skips.push_back(std::move(s));
    if (options_.on_skip) options_.on_skip(result_.skips.back());
  }
  void fail_case(const std::string& op, const std::string& c, const std::string& array,
                 const std::string& text) {
    ++result_.failed;
    report({op,
            c,
            options_.implementation,
            array,
            {},
            "",
            "",
            "",
            "",
            text,
            command(op, c, options_.implementation, options_.where)});
  }

  void run_case(const manifest& m, const op_info* op, const case_spec& c, bool& any_implementation) {
    if (!op) {
      any_implementation = true;
      return fail_case(m.op, c.name, "", "the operation is unknown");
    }
    if (!c.broken.empty()) return fail_case(m.op, c.name, "", c.broken);
    try {
      const golden_case golden(*op, c);
      // Metadata first, on the host: the same for every implementation.
      const bound_case probe(*op, golden, host_queue());
      golden.check_dimensions(probe.problem());
      if (const status s = check(*op, probe.problem().get()); !s.ok()) throw bad_case("", s.text());
      run_implementations(*op, c, golden, any_implementation);
    } catch (const bad_case& e) {
      fail_case(m.op, c.name, e.array, e.what());
    } catch (const error& e) {
      fail_case(m.op, c.name, "", e.what());
    }
  }

  void run_implementations(const op_info& op, const case_spec& c, const golden_case& golden,
                           bool& any_implementation) {
    std::int64_t ran = 0;
    for (const implementation_ref& i : implementations(op.name)) {
      const std::string name = i.entry->name;
      if (!options_.implementation.empty() && name != options_.implementation) continue;
      any_implementation = true;
      std::string reason;
      const std::optional<device> where = device_for(i.entry->device_kind, reason);
      if (!where) {
        // Without a name and with a device named, the other kinds' implementations were not asked for.
        if (!options_.implementation.empty() || !options_.where)
          report_skip({op.name, c.name, name, reason}), ++ran;
        continue;
      }
      ++ran;
      run_on(op, c, golden, i, *where);
    }
    if (ran == 0) {
      const std::string what =
          options_.implementation.empty() ? "no implementation" : "no implementation of that name";
      report_skip({op.name, c.name, options_.implementation,
                   what + (options_.where ? " on " + options_.where->text() : "")});
    }
  }

  std::optional<device> device_for(std::int32_t entry_kind, std::string& reason) const {
    if (entry_kind == any_device_kind) return options_.where.value_or(device{});
    const auto kind = static_cast<device_kind>(entry_kind);
    if (options_.where) {
      if (options_.where->kind() == kind) return options_.where;
      reason = fmt::format("runs on {}, the device is {}", to_string(kind), options_.where->text());
      return {};
    }
    for (const device d : device::all())
      if (d.kind() == kind) return d;
    reason = fmt::format("no {} device on this node", to_string(kind));
    for (const backend_info& b : backends())
      if (b.table && b.table->device_kind == static_cast<std::int32_t>(kind) && !b.reason.empty())
        reason += ": " + b.reason;
    return {};
  }

  queue& host_queue() { return queues_for(device{})[0]; }
  // An ordinary queue and a checked one.
  std::vector<queue>& queues_for(device d) {
    auto& q = queues_[d.text()];
    if (q.empty()) {
      q.emplace_back(d);
      q.emplace_back(d, queue_properties{.checked = true});
    }
    return q;
  }

  void run_on(const op_info& op, const case_spec& c, const golden_case& golden, const implementation_ref& i,
              device where) {
    const std::string name = i.entry->name;
    const auto fail = [&](const std::string& array, const std::string& text, const difference* d = nullptr) {
      failure f{
          op.name, c.name, name, array, {}, "", "", "", "", text, command(op.name, c.name, name, where)};
      if (d)
        f.index = d->index, f.expected = d->expected, f.got = d->got, f.expected_bits = d->expected_bits,
        f.got_bits = d->got_bits;
      report(std::move(f));
    };
    const std::size_t before = result_.failures.size();
    try {
      std::vector<queue>& queues = queues_for(where);
      bound_case bound(op, golden, queues[0]);
      char reason[512] = "";
      if (!i.entry->supports(&where.info(), bound.problem().get(), reason, sizeof reason)) {
        // A fast path may leave problems to the plain kernels; those and the reference take everything.
        const bool takes_all = name == "reference" || name.ends_with(".simt");
        if (options_.implementation.empty() || !takes_all)
          return report_skip({op.name, c.name, name, std::string("refused: ") + reason});
        ++result_.failed;
        return fail("", std::string("refused: ") + reason);
      }
      const int runs = where.kind() == device_kind::cpu ? 2 : 3;
      std::map<std::string, std::vector<unsigned char>> results[3];
      for (int r = 0; r < runs; ++r) {
        run_once(bound, golden, queues[r == 1 ? 1 : 0], name, r);
        for (auto& [array, buffer] : bound.buffers()) {
          const bool read_only = golden.arguments().at(array).field->role == field_role::in;
          if (std::string stray = buffer->stray_writes(read_only); !stray.empty()) fail(array, stray);
          if (!read_only) results[r].emplace(array, buffer->elements());
        }
        if (result_.failures.size() != before) break;
      }
      if (result_.failures.size() == before)
        for (const auto& [array, a] : golden.arguments())
          if (a.expected) {
            check_result(golden, array, a, results[0].at(array), fail);
            for (int r = 1; r < runs && result_.failures.size() == before; ++r)
              check_repeat(golden, array, a, results[0].at(array), results[r].at(array), poisons[r], fail);
          }
    } catch (const bad_case& e) {
      fail(e.array, e.what());
    } catch (const std::exception& e) {
      fail("", e.what());
    }
    ++(result_.failures.size() == before ? result_.passed : result_.failed);
  }

  void run_once(bound_case& bound, const golden_case& golden, queue& q, const std::string& name, int r) {
    for (auto& [array, buffer] : bound.buffers()) {
      const argument& a = golden.arguments().at(array);
      buffer->reset(poisons[r], a.before ? &*a.before : nullptr);
    }
    plan p(q, bound.problem(), run_options{.implementation = name});
    if (p.implementation() != name)
      throw error(status_code::internal, fmt::format("{} was chosen instead", p.implementation()));
    if (r < 2)
      p.run(bound.problem());
    else
      portile::run(q, bound.problem(), {.implementation = name, .max_blocks = few_blocks});
    q.wait();
    for (auto& [array, buffer] : bound.buffers()) buffer->download();
    q.wait();
  }

  template <class F>
  void check_result(const golden_case& golden, const std::string& array, const argument& a,
                    const std::vector<unsigned char>& got, const F& fail) {
    const array_view expected{a.spec->type, a.spec->shape, *a.expected},
        view{a.spec->type, a.spec->shape, got};
    const auto d = compare(*a.how, expected, view, golden.mask(a.how->rows, array),
                           golden.mask(a.how->exact_rows, array));
    if (d) fail(array, d->text, &*d);
  }

  // Same bits in both runs. Entries outside the mask: the same bits, or never written.
  template <class F>
  void check_repeat(const golden_case& golden, const std::string& array, const argument& a,
                    const std::vector<unsigned char>& first, const std::vector<unsigned char>& other,
                    unsigned char poison, const F& fail) {
    const array_view one{a.spec->type, a.spec->shape, first}, two{a.spec->type, a.spec->shape, other};
    const row_mask* rows = golden.mask(a.how->rows, array);
    const std::size_t size = static_cast<std::size_t>(size_of(a.spec->type));
    for (std::size_t e = 0; e * size < first.size(); ++e) {
      const unsigned char *p = first.data() + e * size, *q = other.data() + e * size;
      const bool same = std::equal(p, p + size, q);
      const bool counted = counts(rows, a.spec->shape, static_cast<std::int64_t>(e));
      if (counted && same) continue;
      const auto kept = [&](const unsigned char* v, unsigned char fill) {
        return a.before ? std::equal(v, v + size, a.before->data() + e * size)
                        : std::all_of(v, v + size, [&](unsigned char b) { return b == fill; });
      };
      const bool untouched = kept(p, poisons[0]) && kept(q, poison);
      std::string text;
      if (!counted && golden.leaves_other_rows() && !untouched)
        text = "an entry outside the mask was written";
      else if (!same && (counted || !untouched))
        text = "another run from the same inputs gave other bits, or the element was never written";
      if (text.empty()) continue;
      const difference d = difference_at(one, two, static_cast<std::int64_t>(e), "");
      return fail(array, text, &d);
    }
  }

  const verify_options& options_;
  verify_result result_;
  std::map<std::string, std::vector<queue>> queues_;
};

}  // namespace

verify_result verify(const verify_options& options) { return runner(options).run(); }

}  // namespace portile::golden
