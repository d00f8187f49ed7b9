// The native half of `import portile`: packed functions over apache-tvm-ffi's C ABI, so one build serves
// every Python. A call is flat: options by position, then `name, value` pairs of fields. `name:dtype` reads
// the memory of a tensor as that element type. A tuple (dtype, extents, strides or None) stands for a tensor
// without memory where only shapes matter.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <tuple>

#include <portile/core/registry.hpp>
#include <portile/dlpack.hpp>
#include <portile/portile.hpp>

namespace {

namespace ffi = tvm::ffi;
using namespace portile;

// The argument that an error is about; its text is made only then.
struct argument {
  std::string_view op, name;
  std::int64_t index = -1;  // in a list
  std::string text() const {
    return std::string(op) + ": " + std::string(name) + (index < 0 ? "" : "[" + std::to_string(index) + "]");
  }
};

[[noreturn]] void refuse(const argument& where, std::string_view value, std::string_view rule) {
  throw error(status_code::invalid_argument,
              where.text() + " = " + std::string(value) + ": " + std::string(rule));
}

const char* python_exception(status_code code) {
  switch (code) {
    case status_code::invalid_argument:
      return "ValueError";
    case status_code::unsupported:
      return "NotImplementedError";
    case status_code::out_of_memory:
      return "MemoryError";
    default:
      return "RuntimeError";
  }
}

// Runs f and turns Portile's errors into the Python exceptions of the same text.
template <class F>
auto translated(F&& f) {
  try {
    return f();
  } catch (const error& e) {
    throw ffi::Error(python_exception(e.code()), e.what(), "");
  } catch (const std::bad_alloc&) {
    throw ffi::Error("MemoryError", "out of host memory", "");
  }
}

// What came from Python, for the text of an error.
std::string show(ffi::AnyView v) {
  switch (v.type_index()) {
    case kTVMFFINone:
      return "None";
    case kTVMFFIBool:
      return v.cast<bool>() ? "True" : "False";
    case kTVMFFIInt:
      return std::to_string(v.cast<std::int64_t>());
    case kTVMFFIFloat:
      return portile::detail::show(v.cast<double>());
    case kTVMFFISmallStr:
    case kTVMFFIStr:
      return "'" + std::string(v.cast<ffi::String>()) + "'";
    case kTVMFFIOpaquePyObject:
      return "an object that is no DLPack tensor";
    default:
      return "a value of type " + std::string(v.GetTypeKey());
  }
}

bool is_text(ffi::AnyView v) { return v.type_index() == kTVMFFISmallStr || v.type_index() == kTVMFFIStr; }

bool is_packed(dtype t) { return t == dtype::e2m1x2 || t == dtype::e5m6x8 || t == dtype::ue8m0x4; }

// The plain whole-number type that DLPack has for elements of this size.
std::uint8_t plain_bits(dtype t) { return static_cast<std::uint8_t>(8 * size_of(t)); }

tensor read_as(const DLTensor& d, dtype type, const argument& where) {
  const int bits = d.dtype.bits * d.dtype.lanes;
  if (bits != 8 * size_of(type))
    refuse(where, std::to_string(bits) + "-bit elements",
           "must have " + std::to_string(8 * size_of(type)) + " bits to be read as " +
               std::string(to_string(type)));
  DLTensor plain = d;
  plain.dtype = {portile::detail::dl_int, plain_bits(type), 1};
  tensor t = make_tensor(plain);
  t.dtype = type;
  return t;
}

// Four scale bytes along the last dimension are one ue8m0x4.
tensor read_scale_bytes(const DLTensor& d, const argument& where) {
  tensor t = read_as(d, dtype::u8, where);
  const int last = t.rank - 1;
  bool fits = t.rank > 0 && t.stride(last) == 1 && t.extent(last) % 4 == 0 &&
              reinterpret_cast<std::uintptr_t>(t.data) % 4 == 0;
  for (int i = 0; i < last; ++i) fits = fits && (t.extent(i) <= 1 || t.stride(i) % 4 == 0);
  if (!fits) refuse(where, t.text(), "e8m0 bytes must come in aligned fours along the last dimension");
  t.dtype = dtype::ue8m0x4;
  t.extents[static_cast<std::size_t>(last)] /= 4;
  for (int i = 0; i < last; ++i) t.strides[static_cast<std::size_t>(i)] /= 4;
  return t;
}

// The tensor as the field takes it. Frameworks lack the packed types: memory of a plain whole-number type is
// read as the one packed type of its element size that the field takes.
tensor read_tensor(const DLTensor& d, const field_info& f, std::string_view as, const argument& where) {
  constexpr int dl_e8m0fnu = 14;
  if (as == "e8m0" || (as.empty() && d.dtype.code == dl_e8m0fnu && f.types.contains(dtype::ue8m0x4)))
    return read_scale_bytes(d, where);
  if (!as.empty()) {
    const dtype type = dtype_from_string(as);
    if (type == dtype::none) refuse(where, as, "no such element type");
    return read_as(d, type, where);
  }
  tensor t;
  try {
    t = make_tensor(d);
  } catch (const error& e) {
    throw error(e.code(), where.text() + ": " + e.what());
  }
  const bool plain =
      t.dtype == dtype::u8 || t.dtype == dtype::i8 || t.dtype == dtype::i32 || t.dtype == dtype::u32;
  if (!plain || f.types.contains(t.dtype)) return t;
  dtype only = dtype::none;
  int found = 0;
  for (dtype candidate : f.types)
    if (is_packed(candidate) && size_of(candidate) == size_of(t.dtype)) {
      only = candidate;
      ++found;
    }
  if (found == 1) t.dtype = only;
  return t;
}

void set_attribute(const field_info& f, void* problem, ffi::AnyView v, const argument& where) {
  void* const at = static_cast<char*>(problem) + f.offset;
  const int type = v.type_index();
  const auto integer = [&] {
    if (type != kTVMFFIInt) refuse(where, show(v), "must be a whole number");
    return v.cast<std::int64_t>();
  };
  const auto real = [&] {
    if (type == kTVMFFIInt) return static_cast<double>(v.cast<std::int64_t>());
    if (type != kTVMFFIFloat) refuse(where, show(v), "must be a number");
    return v.cast<double>();
  };
  switch (f.type) {
    case attribute_type::boolean:
      if (type != kTVMFFIBool) refuse(where, show(v), "must be True or False");
      *static_cast<bool*>(at) = v.cast<bool>();
      return;
    case attribute_type::integer:
      *static_cast<std::int64_t*>(at) = integer();
      return;
    case attribute_type::real:
      *static_cast<double*>(at) = real();
      return;
    case attribute_type::text: {
      if (!is_text(v)) refuse(where, show(v), "must be a string");
      const auto text = v.cast<ffi::String>();
      f.set_attribute(problem, {text.data(), text.size()});
      return;
    }
    case attribute_type::optional_integer:
      *static_cast<std::optional<std::int64_t>*>(at) = integer();
      return;
    case attribute_type::optional_real:
      *static_cast<std::optional<double>*>(at) = real();
      return;
  }
}

// A problem filled from `name, value` pairs.
class call {
 public:
  call(const op_info& op, bool with_memory) : op(op), problem(op), with_memory_(with_memory) {}

  const op_info& op;
  any_problem problem;

  void set(ffi::PackedArgs fields) {
    if (fields.size() % 2 != 0)
      throw error(status_code::internal, op.name + ": fields must come as name, value pairs");
    for (int i = 0; i < fields.size(); i += 2) set(fields[i].cast<ffi::String>(), fields[i + 1]);
    for (const auto& [name, value] : dimensions_)
      if (const auto bound = environment_of(false).find(name); with_memory_ && bound != value)
        refuse({op.name, name}, std::to_string(value),
               bound ? "the shapes say " + std::to_string(*bound) : "no shape says so");
  }
  // Attributes, extents of the tensors, and (asked for) the dimensions that were given as numbers.
  environment environment_of(bool given) const {
    environment env(op, problem.get());
    if (given)
      for (const auto& [name, value] : dimensions_) env.bind(name, value);
    bind_dimensions(op, problem.get(), env);
    return env;
  }
  // Of the first tensor that lies on the queue's device.
  device where() const {
    for (const field_info& f : op.fields) {
      if (f.on_host) continue;
      if (f.kind == field_kind::tensor && f.tensor_in(problem.get()).defined())
        return f.tensor_in(problem.get()).device;
      if (f.kind == field_kind::tensor_list && f.list_in(problem.get()).size > 0)
        return f.list_in(problem.get())[0].device;
    }
    return {};
  }
  void place(device d) {  // for tensors without memory
    for (const field_info& f : op.fields) {
      if (f.kind == field_kind::tensor && !f.on_host) f.tensor_in(problem.get()).device = d;
      if (f.kind == field_kind::tensor_list)
        for (std::int64_t i = 0; i < f.list_in(problem.get()).size; ++i)
          const_cast<tensor&>(f.list_in(problem.get())[i]).device = d;
    }
  }

 private:
  void set(const ffi::String& key, ffi::AnyView v) {
    const std::string_view text(key.data(), key.size());
    const auto colon = text.find(':');
    const std::string_view name = text.substr(0, colon);
    const std::string_view as = colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1);
    const field_info* f = op.find(name);
    if (!f) return set_dimension(name, v);
    if (v.type_index() == kTVMFFINone) return;  // absent, or the default
    const argument where{op.name, f->name};
    switch (f->kind) {
      case field_kind::attribute:
        set_attribute(*f, problem.get(), v, where);
        return;
      case field_kind::tensor:
        f->tensor_in(problem.get()) = tensor_of(*f, v, as, where);
        return;
      case field_kind::tensor_list: {
        if (v.type_index() != kTVMFFIArray) refuse(where, show(v), "must be a list of tensors");
        std::vector<tensor>& list = lists_.emplace_back();
        for (const ffi::Any& one : v.cast<ffi::Array<ffi::Any>>())
          list.push_back(tensor_of(*f, one, as, {op.name, f->name, static_cast<std::int64_t>(list.size())}));
        f->list_in(problem.get()) = {list.data(), static_cast<std::int64_t>(list.size())};
        return;
      }
    }
  }
  void set_dimension(std::string_view name, ffi::AnyView v) {
    const argument where{op.name, name};
    if (!op.is_dimension(name)) {
      std::string known;
      for (const field_info& f : op.fields) known += (known.empty() ? "" : ", ") + f.name;
      refuse(where, show(v), "no field has this name; the fields are " + known);
    }
    if (v.type_index() != kTVMFFIInt) refuse(where, show(v), "must be a whole number");
    dimensions_.emplace_back(name, v.cast<std::int64_t>());
  }
  tensor tensor_of(const field_info& f, ffi::AnyView v, std::string_view as, const argument& where) {
    if (v.type_index() == kTVMFFITensor || v.type_index() == kTVMFFIDLTensorPtr)
      return read_tensor(*v.cast<DLTensor*>(), f, as, where);
    if (v.type_index() != kTVMFFIArray || with_memory_) refuse(where, show(v), "must be a tensor");
    const auto spec = v.cast<ffi::Array<ffi::Any>>();
    const dtype type = dtype_from_string(std::string(spec[0].cast<ffi::String>()));
    if (type == dtype::none) refuse(where, show(spec[0]), "no such element type");
    const auto list = [](const ffi::Any& a) {
      const auto array = a.cast<ffi::Array<std::int64_t>>();
      return std::vector<std::int64_t>(array.begin(), array.end());
    };
    const auto extents = list(spec[1]);
    tensor t = spec[2].type_index() == kTVMFFINone
                   ? make_tensor(nullptr, type, std::span<const std::int64_t>(extents))
                   : make_tensor(nullptr, type, std::span<const std::int64_t>(extents),
                                 std::span<const std::int64_t>(list(spec[2])));
    // An address of its own, never read: rules about presence, alignment and overlap see what a call would.
    t.data = reinterpret_cast<void*>(next_address_);
    next_address_ += std::uintptr_t{1} << 40;
    return t;
  }

  bool with_memory_;
  std::deque<std::vector<tensor>> lists_;  // a deque: the problem points into it
  std::vector<std::pair<std::string, std::int64_t>> dimensions_;
  std::uintptr_t next_address_ = std::uintptr_t{1} << 40;
};

// One queue per device, stream and properties, kept for ever: graphs captured through a queue hold addresses
// in its arena. Leaked, because a vendor's run time may be gone when the process ends.
queue& queue_for(device where, void* stream, bool checked, bool host_fallback) {
  using key = std::tuple<device_kind, int, void*, bool, bool>;
  static auto* const queues = new std::map<key, queue>;
  static auto* const mutex = new std::mutex;
  const std::lock_guard lock(*mutex);
  const key k{where.kind(), where.ordinal(), stream, checked, host_fallback};
  auto it = queues->find(k);
  if (it == queues->end()) {
    const queue_properties properties{.host_fallback = host_fallback, .checked = checked};
    it = queues
             ->emplace(k, where.kind() == device_kind::cpu ? queue(where, properties)
                                                           : queue::wrap(where, stream, properties))
             .first;
  }
  return it->second;
}

// What precedes the fields of `run` and `plan`: op, implementation, stream, checked, host_fallback,
// max_blocks.
constexpr int num_options = 6;

struct options {
  explicit options(ffi::PackedArgs a)
      : implementation(a[1].type_index() == kTVMFFINone ? ffi::String() : a[1].cast<ffi::String>()),
        stream(a[2]),
        checked(a[3].cast<bool>()),
        host_fallback(a[4].cast<bool>()) {
    run.implementation = {implementation.data(), implementation.size()};
    run.max_blocks = a[5].cast<std::int64_t>();
  }
  queue& queue_of(const call& c) const {
    const device where = c.where();
    void* handle = nullptr;
    if (stream.type_index() != kTVMFFINone)
      handle = reinterpret_cast<void*>(stream.cast<std::int64_t>());
    else if (where.kind() != device_kind::cpu)
      handle = TVMFFIEnvGetStream(where.kind() == device_kind::hip ? kDLROCM : kDLCUDA, where.ordinal());
    return queue_for(where, handle, checked, host_fallback);
  }

  ffi::String implementation;
  ffi::AnyView stream;
  run_options run;
  bool checked, host_fallback;
};

const op_info& op_of(ffi::AnyView name) { return get_operation(std::string(name.cast<ffi::String>())); }

void run_op(ffi::PackedArgs a, ffi::Any*) {
  const options o(a);
  call c(op_of(a[0]), true);
  c.set(a.Slice(num_options));
  queue& q = o.queue_of(c);
  portile::run(q, c.problem, o.run);
  if (o.checked) q.wait();
}

void make_plan(ffi::PackedArgs a, ffi::Any* result) {
  const options o(a);
  call c(op_of(a[0]), true);
  c.set(a.Slice(num_options));
  queue& q = o.queue_of(c);
  auto p = std::make_shared<plan>(q, c.problem, o.run);
  *result = ffi::Map<ffi::String, ffi::Any>{
      {"implementation", ffi::String(std::string(p->implementation()))},
      {"backend", ffi::String(std::string(p->backend()))},
      {"workspace_bytes", static_cast<std::int64_t>(p->workspace_bytes())},
      {"host_fallback", p->host_fallback()},
      {"run", ffi::Function::FromPacked(
                  [p, op = &c.op, q, checked = o.checked](ffi::PackedArgs fields, ffi::Any*) mutable {
                    translated([&] {
                      call again(*op, true);
                      again.set(fields);
                      p->run(again.problem);
                      if (checked) q.wait();
                    });
                  })}};
}

ffi::Array<std::int64_t> numbers(const std::vector<std::int64_t>& v) { return {v.begin(), v.end()}; }

ffi::Map<ffi::String, ffi::Any> tensor_map(const std::string& field, dtype type,
                                           const std::vector<std::int64_t>& extents,
                                           const std::vector<std::int64_t>& strides, bool worst_case) {
  return {{"field", ffi::String(field)},
          {"dtype", ffi::String(std::string(to_string(type)))},
          {"shape", numbers(extents)},
          {"strides", numbers(strides)},
          {"worst_case", worst_case}};
}

void infer_outputs(ffi::PackedArgs a, ffi::Any* result) {
  call c(op_of(a[0]), false);
  c.set(a.Slice(1));
  ffi::Array<ffi::Any> list;
  for (const output_spec& o : infer(c.op, c.problem.get(), c.environment_of(true)))
    list.push_back(tensor_map(o.field, o.dtype, o.extents, o.strides, o.worst_case));
  *result = list;
}

// op, Map of the tensors that are there (field to dtype, "" for the field's first), then attributes and
// dimensions: the declared shape of every tensor that is in or in-out, and of the outputs that infer does not
// speak of.
void declared_tensors(ffi::PackedArgs a, ffi::Any* result) {
  call c(op_of(a[0]), false);
  const auto wanted = a[1].cast<ffi::Map<ffi::String, ffi::String>>();
  c.set(a.Slice(2));
  std::map<std::string, dtype> types;
  for (const auto& [name, type] : wanted) {
    const std::string field(name), text(type);
    const field_info* f = c.op.find(field);
    if (!f || f->kind == field_kind::attribute)
      refuse({c.op.name, field}, "'" + text + "'", "no tensor has this name");
    types[field] = text.empty() ? f->types.first() : dtype_from_string(text);
    if (types[field] == dtype::none) refuse({c.op.name, field}, "'" + text + "'", "no such element type");
  }
  for (const field_info& f : c.op.fields) {  // shapes may depend on element types
    if (f.kind != field_kind::attribute && !f.is_optional) types.emplace(f.name, f.types.first());
    if (f.kind == field_kind::tensor && types.contains(f.name))
      f.tensor_in(c.problem.get()).dtype = types[f.name];
  }
  const environment env = c.environment_of(true);
  ffi::Array<ffi::Any> list;
  for (const field_info& f : c.op.fields) {
    if (!types.contains(f.name)) continue;
    std::string missing;
    const auto extents = declared_extents(f, types[f.name], env, missing);
    if (!extents) {
      if (f.role == field_role::out) continue;
      refuse({c.op.name, f.name}, "[" + f.shape.text + "]", missing + " has no value");
    }
    const extents_t strides = contiguous_strides(*extents);
    list.push_back(
        tensor_map(f.name, types[f.name], *extents,
                   {strides.begin(), strides.begin() + static_cast<std::ptrdiff_t>(extents->size())}, false));
  }
  *result = list;
}

void check_problem(ffi::PackedArgs a, ffi::Any*) {
  call c(op_of(a[0]), false);
  c.set(a.Slice(1));
  check(c.op, c.problem.get()).or_throw();
}

// op, device or architecture or None, host_fallback, fields.
void explain_choice(ffi::PackedArgs a, ffi::Any* result) {
  call c(op_of(a[0]), false);
  c.set(a.Slice(3));
  explanation e;
  portile_device_info model{};
  if (a[1].type_index() != kTVMFFINone) {
    const std::string name(a[1].cast<ffi::String>());
    if (name.find(':') == std::string::npos && device_model(name, model)) {
      e = explain(model, c.problem);
    } else {
      c.place(device::parse(name));
      e = explain(queue_for(device::parse(name), nullptr, false, a[2].cast<bool>()), c.problem);
    }
  } else {
    e = explain(queue_for(c.where(), nullptr, false, a[2].cast<bool>()), c.problem);
  }
  ffi::Array<ffi::Any> candidates;
  for (const candidate& one : e.candidates)
    candidates.push_back(ffi::Map<ffi::String, ffi::Any>{{"implementation", ffi::String(one.implementation)},
                                                         {"backend", ffi::String(one.backend)},
                                                         {"accepted", one.accepted},
                                                         {"reason", ffi::String(one.reason)}});
  *result = ffi::Map<ffi::String, ffi::Any>{
      {"op", ffi::String(e.op)},         {"device", ffi::String(e.device)}, {"error", ffi::String(e.error)},
      {"chosen", ffi::String(e.chosen)}, {"candidates", candidates},        {"text", ffi::String(e.text())}};
}

ffi::Array<ffi::Any> texts(const auto& list) {
  ffi::Array<ffi::Any> a;
  for (const auto& one : list) a.push_back(ffi::String(std::string(one)));
  return a;
}

ffi::Map<ffi::String, ffi::Any> field_map(const field_info& f) {
  const bool is_tensor = f.kind != field_kind::attribute;
  static constexpr const char* kinds[] = {"tensor", "tensor_list", "attribute"};
  static constexpr const char* roles[] = {"in", "out", "inout"};
  static constexpr const char* types[] = {"bool", "int", "float", "str", "int or None", "float or None"};
  ffi::Map<ffi::String, ffi::Any> m{{"name", ffi::String(f.name)},
                                    {"kind", ffi::String(kinds[static_cast<int>(f.kind)])},
                                    {"meaning", ffi::String(f.text)}};
  if (is_tensor) {
    std::vector<std::string_view> names;
    for (dtype t : f.types) names.push_back(to_string(t));
    m.Set("role", ffi::String(roles[static_cast<int>(f.role)]));
    m.Set("dtypes", texts(names));
    m.Set("shape", ffi::String(f.shape.text));
    m.Set("optional", f.is_optional);
    m.Set("on_host", f.on_host);
  } else {
    m.Set("type", ffi::String(types[static_cast<int>(f.type)]));
    m.Set("choices", texts(f.choices));
  }
  return m;
}

void list_ops(ffi::PackedArgs, ffi::Any* result) {
  ffi::Array<ffi::Any> list;
  for (const op_info& op : operations()) {
    ffi::Array<ffi::Any> fields, names;
    for (const field_info& f : op.fields) fields.push_back(field_map(f));
    for (const implementation_ref& i : implementations(op.name)) names.push_back(ffi::String(i.entry->name));
    list.push_back(ffi::Map<ffi::String, ffi::Any>{{"name", ffi::String(op.name)},
                                                   {"family", ffi::String(op.family)},
                                                   {"summary", ffi::String(op.summary)},
                                                   {"tolerance", ffi::String(op.tolerance)},
                                                   {"deterministic", op.deterministic},
                                                   {"capture_safe", op.capture_safe},
                                                   {"fields", fields},
                                                   {"dimensions", texts(op.dimensions)},
                                                   {"implementations", names}});
  }
  *result = list;
}

void list_devices(ffi::PackedArgs, ffi::Any* result) {
  ffi::Array<ffi::Any> list;
  for (const device& d : device::all()) {
    std::vector<std::string_view> aspects;
    for (aspect a : d.aspects()) aspects.push_back(to_string(a));
    list.push_back(ffi::Map<ffi::String, ffi::Any>{{"device", ffi::String(d.text())},
                                                   {"name", ffi::String(std::string(d.name()))},
                                                   {"arch", ffi::String(std::string(d.arch()))},
                                                   {"aspects", texts(aspects)}});
  }
  *result = list;
}

void force_implementations(ffi::PackedArgs a, ffi::Any*) {
  set_forced_implementations(std::string(a[0].cast<ffi::String>()));
}

int exported(void (*f)(ffi::PackedArgs, ffi::Any*), const TVMFFIAny* args, std::int32_t n,
             TVMFFIAny* result) {
  TVM_FFI_SAFE_CALL_BEGIN();
  translated([&] {
    f(ffi::PackedArgs(reinterpret_cast<const ffi::AnyView*>(args), n), reinterpret_cast<ffi::Any*>(result));
  });
  TVM_FFI_SAFE_CALL_END();
}

}  // namespace

// The names by which tvm_ffi.load_module finds functions.
#define PORTILE_EXPORT(name, function)                                                             \
  extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_##name(void*, const TVMFFIAny* args, std::int32_t n, \
                                                     TVMFFIAny* result) {                          \
    return exported(function, args, n, result);                                                    \
  }
PORTILE_EXPORT(run, run_op)
PORTILE_EXPORT(plan, make_plan)
PORTILE_EXPORT(infer, infer_outputs)
PORTILE_EXPORT(declared, declared_tensors)
PORTILE_EXPORT(check, check_problem)
PORTILE_EXPORT(explain, explain_choice)
PORTILE_EXPORT(ops, list_ops)
PORTILE_EXPORT(devices, list_devices)
PORTILE_EXPORT(force, force_implementations)
