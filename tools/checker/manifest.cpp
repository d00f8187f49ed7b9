#include "manifest.hpp"

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include <portile/core/check.hpp>
#include <portile/core/status.hpp>

namespace portile::golden {
namespace {

using nlohmann::json;

[[noreturn]] void bad(const std::string& text) { throw error(status_code::invalid_argument, text); }

void known_keys(const std::string& where, const json& object, std::initializer_list<const char*> known) {
  if (!object.is_object()) bad(where + " is no object");
  for (const auto& item : object.items())
    if (std::find(known.begin(), known.end(), item.key()) == known.end())
      bad(where + " has an unknown key '" + item.key() + "'");
}

const json& need(const std::string& where, const json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end()) bad(where + " has no '" + key + "'");
  return *it;
}

std::string param_text(const json& v) {
  if (v.is_string()) return v.get<std::string>();
  if (v.is_boolean()) return v.get<bool>() ? "true" : "false";
  if (v.is_number_integer()) return v.dump();
  if (v.is_number()) return portile::detail::show(v.get<double>());
  bad("is neither a number, a text nor a boolean");
}

comparison read_compare(const std::string& where, const json& c) {
  static const std::map<std::string, compare_kind> kinds = {{"bits", compare_kind::bits},
                                                            {"close", compare_kind::close},
                                                            {"close_rowmax", compare_kind::close_rowmax},
                                                            {"ulp", compare_kind::ulp},
                                                            {"code_rank", compare_kind::code_rank},
                                                            {"calc_diff", compare_kind::calc_diff}};
  comparison r;
  const auto kind = kinds.find(need(where, c, "kind").get<std::string>());
  if (kind == kinds.end()) bad(where + ": kind '" + c["kind"].get<std::string>() + "' is unknown");
  r.kind = kind->second;
  const auto number = [&](const char* key) { return need(where, c, key).get<double>(); };
  switch (r.kind) {
    case compare_kind::bits:
      known_keys(where, c, {"kind", "rows", "any_nan"});
      r.any_nan = c.value("any_nan", false);
      break;
    case compare_kind::close:
      known_keys(where, c, {"kind", "rows", "rtol", "atol", "exact_rows"});
      r.rtol = number("rtol"), r.atol = number("atol");
      r.exact_rows = c.value("exact_rows", "");
      break;
    case compare_kind::close_rowmax:
      known_keys(where, c, {"kind", "rows", "rtol", "atol_times_rowmax"});
      r.rtol = number("rtol"), r.atol_times_rowmax = number("atol_times_rowmax");
      break;
    case compare_kind::ulp:
      known_keys(where, c, {"kind", "rows", "max", "or_atol_times_rowmax"});
      r.max = number("max");
      if (c.contains("or_atol_times_rowmax")) r.or_atol_times_rowmax = number("or_atol_times_rowmax");
      break;
    case compare_kind::code_rank:
      known_keys(where, c, {"kind", "rows", "max", "max_fraction"});
      r.max = number("max"), r.max_fraction = number("max_fraction");
      break;
    case compare_kind::calc_diff:
      known_keys(where, c, {"kind", "rows", "below"});
      r.below = number("below");
      break;
  }
  r.rows = c.value("rows", "");
  return r;
}

bool applies(compare_kind kind, dtype t) {
  switch (kind) {
    case compare_kind::bits:
      return true;
    case compare_kind::ulp:
      return t == dtype::bf16 || t == dtype::f32;
    case compare_kind::code_rank:
      return t == dtype::e4m3 || t == dtype::e2m1x2;
    default:
      return t == dtype::bf16 || t == dtype::f32 || t == dtype::f64;
  }
}

array_spec read_array(const json& a, const std::filesystem::path& family) {
  static const std::map<std::string, array_role> roles = {{"in", array_role::in},
                                                          {"out", array_role::out},
                                                          {"inout_before", array_role::inout_before},
                                                          {"inout_after", array_role::inout_after},
                                                          {"mask", array_role::mask},
                                                          {"info", array_role::info}};
  array_spec r;
  r.name = need("an array", a, "name").get<std::string>();
  const std::string where = "array '" + r.name + "'";
  known_keys(where, a, {"name", "role", "file", "dtype", "shape", "strides", "compare"});
  const auto role = roles.find(need(where, a, "role").get<std::string>());
  if (role == roles.end()) bad(where + ": role '" + a["role"].get<std::string>() + "' is unknown");
  r.role = role->second;
  r.file = family / need(where, a, "file").get<std::string>();
  const std::string type = need(where, a, "dtype").get<std::string>();
  r.type = dtype_from_string(type);
  if (r.type == dtype::none) bad(where + ": dtype '" + type + "' is unknown");
  r.shape = need(where, a, "shape").get<std::vector<std::int64_t>>();
  for (const std::int64_t e : r.shape)
    if (e < 0) bad(where + ": a negative extent");
  if (a.contains("strides")) {
    r.strides = a["strides"].get<std::vector<std::int64_t>>();
    if (r.strides.size() != r.shape.size()) bad(where + ": strides and shape differ in length");
    for (const std::int64_t s : r.strides)
      if (s < 0) bad(where + ": a negative stride");
  } else {
    r.strides.assign(r.shape.size(), 1);
    for (std::size_t d = r.shape.size(); d-- > 1;)
      r.strides[d - 1] = r.strides[d] * std::max<std::int64_t>(1, r.shape[d]);
  }
  if (a.contains("compare")) r.compare = read_compare(where + ": compare", a["compare"]);
  const bool result = r.role == array_role::out || r.role == array_role::inout_after;
  if (result && !r.compare) bad(where + " has no 'compare'");
  if (r.compare && !result && r.role != array_role::info) bad(where + " has a 'compare' but is no result");
  if (r.compare && !applies(r.compare->kind, r.type)) bad(where + ": its compare does not apply to " + type);
  return r;
}

void read_case(const json& c, const std::filesystem::path& family, case_spec& r) {
  known_keys("the case", c, {"name", "params", "note", "source", "arrays"});
  for (const auto& item : need("the case", c, "params").items()) {
    try {
      r.params.push_back({item.key(), param_text(item.value())});
    } catch (const error& e) {
      bad("param '" + item.key() + "' " + e.what());
    }
  }
  std::set<std::pair<std::string, array_role>> seen;
  for (const json& a : need("the case", c, "arrays")) {
    r.arrays.push_back(read_array(a, family));
    if (!seen.insert({r.arrays.back().name, r.arrays.back().role}).second)
      bad("array '" + r.arrays.back().name + "' is there twice");
  }
}

}  // namespace

std::string op_of(const std::filesystem::path& file) {
  return file.parent_path().filename().string() + "." + file.stem().string();
}

std::vector<std::filesystem::path> find_manifests(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  std::error_code ec;
  if (!fs::is_directory(folder, ec)) bad("'" + folder.string() + "': no such folder");
  std::vector<fs::path> files;
  for (const auto& family : fs::directory_iterator(folder)) {
    if (!family.is_directory()) continue;
    for (const auto& f : fs::directory_iterator(family.path()))
      if (f.is_regular_file() && f.path().extension() == ".json") files.push_back(f.path());
  }
  std::sort(files.begin(), files.end(),
            [](const fs::path& a, const fs::path& b) { return op_of(a) < op_of(b); });
  return files;
}

manifest read_manifest(const std::filesystem::path& file) {
  manifest m;
  m.file = file;
  m.op = op_of(file);
  try {
    std::ifstream in(file);
    if (!in) bad("cannot be opened");
    const json j = json::parse(in);
    known_keys("the manifest", j, {"op", "cases"});
    const std::string op = need("the manifest", j, "op").get<std::string>();
    if (op != m.op) bad("op '" + op + "' is not the one of the file's place, '" + m.op + "'");
    const json& cases = need("the manifest", j, "cases");
    if (!cases.is_array() || cases.empty()) bad("the manifest has no cases");
    for (const json& c : cases) {
      case_spec& r = m.cases.emplace_back();
      try {
        r.name = need("a case", c, "name").get<std::string>();
        read_case(c, file.parent_path(), r);
      } catch (const std::exception& e) {
        r.broken = e.what();
      }
    }
  } catch (const std::exception& e) {
    m.broken = e.what();
  }
  return m;
}

}  // namespace portile::golden
