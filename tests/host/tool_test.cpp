// The `portile` command as a user runs it: outputs, JSON formats, exit codes.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>

#include <nlohmann/json.hpp>

#include <portile/core/registry.hpp>

#include "support/catch.hpp"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct outcome {
  int code = -1;
  std::string out, err;
};

std::string content(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A folder of this test run, removed at its end.
struct scratch {
  fs::path path = fs::temp_directory_path() / ("portile_tool_test_" + std::to_string(getpid()));
  scratch() { fs::create_directories(path); }
  ~scratch() { fs::remove_all(path); }
};

outcome portile_command(const std::string& arguments, const std::string& environment = "") {
  const scratch s;
  const std::string out = (s.path / "out").string(), err = (s.path / "err").string();
  const int status =
      std::system((environment + " '" PORTILE_PROGRAM "' " + arguments + " >" + out + " 2>" + err).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content(out), content(err)};
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string last_line(const std::string& text) {
  const auto end = text.find_last_not_of('\n');
  const auto start = text.rfind('\n', end);
  return text.substr(start + 1, end - start);
}

const std::string golden_op = "quant/per_token_cast";

// A copy of the golden cases of one operation that tests may damage.
struct golden_copy {
  scratch s;
  fs::path folder = s.path.string() + "_golden";
  json manifest;
  golden_copy() {
    fs::create_directories(folder / "quant");
    fs::copy(fs::path(PORTILE_GOLDEN_SOURCE) / golden_op, folder / golden_op, fs::copy_options::recursive);
    manifest = json::parse(content(fs::path(PORTILE_GOLDEN_SOURCE) / (golden_op + ".json")));
    write();
  }
  ~golden_copy() { fs::remove_all(folder); }
  void write() const { std::ofstream(folder / (golden_op + ".json")) << manifest; }
  json& first() { return manifest["cases"][0]; }
  json& array(const std::string& name) {
    for (json& a : first()["arrays"])
      if (a["name"] == name) return a;
    throw std::runtime_error("no array " + name);
  }
  outcome verify(const std::string& more = "") const {
    return portile_command("verify --cases " + folder.string() +
                           " --op quant.per_token_cast --impl reference --case " +
                           manifest["cases"][0]["name"].get<std::string>() + " " + more);
  }
};

const char* example = "explain quant.per_token_cast num_tokens=4001 hidden_size=7104 num_per_channels=128 ";

}  // namespace

TEST_CASE("portile without a subcommand, or with bad input, exits with 2") {
  for (const char* arguments :
       {"",
        "nonsense",
        "info --nonsense",
        "explain",
        "explain quant.nonsense",
        "verify --device tpu",
        "verify --cases /no/such/folder",
        "ops --json --markdown",
        "explain quant.per_token_cast num_tokens=4 hidden_size=128 nonsense=3",
        "explain quant.per_token_cast num_tokens=four hidden_size=128",
        "explain quant.per_token_cast num_tokens=4 hidden_size=128 num_per_channels=1.5",
        "explain quant.per_token_cast num_tokens=4 hidden_size=128 round_sf=perhaps",
        "explain quant.per_token_cast num_tokens=4 hidden_size=128 x.dtype=f31",
        "explain quant.per_token_cast num_tokens=4 hidden_size=128 x.colour=1",
        "explain quant.per_token_cast num_tokens=4 hidden_size=128 y.dtype=f32",
        "explain quant.per_token_cast num_tokens=4 hidden_size=128 x.strides=1",
        "explain quant.per_token_cast num_tokens=4 hidden_size=128 x_sf.dtype=f32",
        "explain quant.per_token_cast num_tokens=4 hidden_size=128 --with y",
        "explain quant.per_token_cast num_tokens=4 hidden_size=128 --device-model sm_91",
        "explain quant.per_token_cast num_tokens=4 hidden_size=128 --device cpu --device-model sm_90",
        "explain quant.per_token_cast num_tokens=4",
        "explain quant.per_token_cast num_tokens",
        "explain quant.per_token_cast num_tokens=9000000000000000000 hidden_size=128"}) {
    const outcome o = portile_command(arguments);
    INFO(arguments << ": " << o.err);
    CHECK(o.code == 2);
    CHECK_FALSE(o.err.empty());
    CHECK(o.out.empty());
  }
  CHECK(has(portile_command("explain quant.per_token_cast num_tokens=4").err, "hidden_size=N"));
  CHECK(has(portile_command("explain gemm.nt m=2 N=2 k=2 --device-model cpu").out, "chosen: reference"));
  CHECK(has(
      portile_command("explain quant.per_token_cast num_tokens=4 hidden_size=128 --device-model sm_91").err,
      "sm_90"));
}

TEST_CASE("portile info") {
  const outcome o = portile_command("info --json");
  REQUIRE(o.code == 0);
  const json j = json::parse(o.out);
  std::set<std::string> names;
  for (const json& b : j.at("backends")) {
    names.insert(b.at("name"));
    CHECK(b.at("file").is_string());
    CHECK((b.at("loaded").get<bool>() || !b.at("reason").get<std::string>().empty()));
    for (const json& d : b.at("devices")) {
      CHECK(d.at("kind").is_string());
      CHECK(d.at("ordinal").is_number_integer());
      CHECK(d.at("name").is_string());
      CHECK_FALSE(d.at("arch").get<std::string>().empty());
      CHECK(d.at("aspects").is_array());
      CHECK(d.at("memory").get<std::uint64_t>() > 0);
    }
  }
  CHECK(names.count("reference") == 1);
  CHECK(names.count("host") == 1);
  const outcome text = portile_command("info");
  CHECK(text.code == 0);
  for (const std::string& n : names) CHECK(has(text.out, n + ": "));
}

TEST_CASE("portile info names a plug-in that cannot be loaded, and why") {
  const scratch s;
  const fs::path bad = s.path.string() + "_libportile_backend_bad.so";
  std::ofstream(bad) << "no library";
  const outcome o = portile_command("info --json", "PORTILE_BACKEND_PATH=" + bad.string());
  const outcome e =
      portile_command(std::string(example) + "--device-model gfx942", "PORTILE_BACKEND_PATH=" + bad.string());
  fs::remove(bad);
  REQUIRE(o.code == 0);
  const json j = json::parse(o.out);
  const json& b = j.at("backends").back();
  CHECK(b.at("file") == bad.string());
  CHECK(b.at("loaded") == false);
  CHECK(has(b.at("reason"), "dlopen"));
  CHECK(e.code == 0);
  CHECK(has(e.out, "no hip backend loaded"));
  CHECK(has(e.out, bad.string()));
}

TEST_CASE("portile ops") {
  const outcome o = portile_command("ops --json");
  REQUIRE(o.code == 0);
  const json j = json::parse(o.out);
  CHECK(j.size() == portile::operations().size());
  const outcome text = portile_command("ops"), markdown = portile_command("ops --markdown"),
                limits = portile_command("ops --limits");
  CHECK((text.code == 0 && markdown.code == 0 && limits.code == 0));
  for (const json& op : j) {
    const std::string name = op.at("name");
    INFO(name);
    CHECK(op.at("family") == name.substr(0, name.find('.')));
    CHECK(op.at("options").is_array());
    CHECK_FALSE(op.at("tolerance").get<std::string>().empty());
    CHECK(op.at("deterministic").is_boolean());
    CHECK(op.at("capture_safe").is_boolean());
    CHECK_FALSE(op.at("implementations").empty());
    for (const json& i : op.at("implementations")) {
      CHECK(i.at("name").is_string());
      CHECK(i.at("backend").is_string());
      CHECK_FALSE(i.at("archs").empty());
    }
    CHECK(has(text.out, name));
    CHECK(has(markdown.out, "| `" + name + "` |"));
  }
  CHECK(has(markdown.out,
            "| operation | options | tolerance | deterministic | capture-safe | implementations |"));
  for (const portile::op_info& op : portile::operations())
    for (const portile::limit_info& l : op.limits)
      if (!has(l.rule, "|"))
        CHECK(
            has(limits.out, "| `" + op.name + "` | " + l.rule + " | " + (l.kept ? "kept" : "lifted") + " |"));
}

TEST_CASE("portile explain lists every candidate for a device that is not there") {
  const outcome o = portile_command(std::string(example) + "--device-model sm_90 --json");
  REQUIRE(o.code == 0);
  const json j = json::parse(o.out);
  CHECK(j.at("op") == "quant.per_token_cast");
  CHECK(j.at("device") == "sm_90");
  CHECK_FALSE(j.contains("error"));
  CHECK(j.at("candidates").size() == portile::implementations("quant.per_token_cast").size());
  bool reference = false;
  for (const json& c : j.at("candidates")) {
    CHECK(c.at("accepted").is_boolean());
    CHECK_FALSE(c.at("reason").get<std::string>().empty());
    if (c.at("implementation") == "reference") {
      reference = true;
      CHECK(c.at("accepted") == false);
      CHECK(has(c.at("reason"), "cpu"));
    }
  }
  CHECK(reference);
  const outcome text = portile_command(std::string(example) + "--device-model sm_90");
  CHECK(text.code == 0);
  for (const json& c : j.at("candidates")) CHECK(has(text.out, c.at("reason").get<std::string>()));
  CHECK(has(text.out, "chosen: "));
  if (j.contains("note")) CHECK(has(text.out, "note: no cuda backend loaded: "));
  for (const std::string_view model : portile::device_models())
    CHECK(portile_command(std::string(example) + "--device-model " + std::string(model)).code == 0);
}

TEST_CASE("portile explain on this machine") {
  const json j = json::parse(portile_command(std::string(example) + "--device cpu --json").out);
  CHECK(j.at("chosen") == "reference");
  const outcome strided = portile_command(
      "explain quant.per_token_cast num_tokens=4 hidden_size=128 x.dtype=e4m3 --with x_sf x_block_rows=1 "
      "x_block_cols=32 x.strides=200,1 x.offset=3 out.dtype=e2m1x2 --device cpu");
  CHECK(strided.code == 0);
  CHECK(has(strided.out, "chosen: reference"));
  CHECK(portile_command("explain quant.per_token_cast num_tokens=0 hidden_size=128 "
                        "use_tma_aligned_col_major_sf=true round_sf=1 use_packed_ue8m0=1 --device cpu")
            .code == 0);
  const outcome bad =
      portile_command("explain quant.per_token_cast num_tokens=4 hidden_size=128 x.strides=1,4 --device cpu");
  CHECK(bad.code == 1);
  CHECK(has(bad.out, "error: quant.per_token_cast: x.strides[1] = 4: the last stride must be 1"));
  CHECK(has(bad.out, "reference"));
  CHECK(has(bad.out, "chosen: none"));
  const json bad_json = json::parse(
      portile_command("explain quant.per_token_cast num_tokens=4 hidden_size=100 --device cpu --json").out);
  CHECK(has(bad_json.at("error"), "multiple of 64"));
  CHECK_FALSE(bad_json.at("candidates").empty());
}

TEST_CASE("portile verify passes on good cases") {
  const outcome o = portile_command("verify --cases " PORTILE_GOLDEN_SOURCE " --op 'quant.per_token_cast'");
  CHECK(o.code == 0);
  CHECK(has(last_line(o.out), " passed, 0 failed, "));
  const json j = json::parse(portile_command("verify --cases " PORTILE_GOLDEN_SOURCE
                                             " --op quant.per_token_cast --impl reference --json")
                                 .out);
  CHECK(j.at("passed").get<int>() > 20);
  CHECK(j.at("failed") == 0);
  CHECK(j.at("skipped") == 0);
  CHECK(j.at("failures").empty());
  golden_copy g;
  CHECK(g.verify().out == "1 passed, 0 failed, 0 skipped\n");
}

TEST_CASE("portile verify shows what differs") {
  golden_copy g;
  const fs::path file = g.folder / "quant" / g.array("out_sf").at("file").get<std::string>();
  std::string bytes = content(file);
  bytes[bytes.size() - 4] = static_cast<char>(bytes[bytes.size() - 4] ^ 1);  // last bit of the last scale
  std::ofstream(file, std::ios::binary) << bytes;
  const outcome o = g.verify("--json");
  CHECK(o.code == 1);
  const json j = json::parse(o.out);
  CHECK(j.at("failed") == 1);
  REQUIRE(j.at("failures").size() == 1);
  const json f = j.at("failures")[0];
  CHECK(f.at("op") == "quant.per_token_cast");
  CHECK(f.at("case") == g.first().at("name"));
  CHECK(f.at("implementation") == "reference");
  CHECK(f.at("array") == "out_sf");
  json last = g.array("out_sf").at("shape");
  for (json& e : last) e = e.get<int>() - 1;
  CHECK(f.at("index") == last);
  const std::string expected = f.at("expected_bits"), got = f.at("got_bits");
  CHECK((std::stoull(expected, nullptr, 16) ^ std::stoull(got, nullptr, 16)) == 1);
  const outcome text = g.verify();
  CHECK(text.code == 1);
  CHECK(last_line(text.out) == "0 passed, 1 failed, 0 skipped");
  for (const char* key :
       {"op", "case", "implementation", "array", "expected", "got", "expected_bits", "got_bits", "command"})
    CHECK(has(text.out, f.at(key).get<std::string>()));

  // The printed command fails in the same way.
  const std::string command = f.at("command");
  REQUIRE(command.starts_with("portile verify "));
  const outcome again = portile_command(command.substr(8));
  CHECK(again.code == 1);
  CHECK(again.out == text.out);
}

TEST_CASE("portile verify fails on what it does not know") {
  const auto expect = [](golden_copy& g, const std::string& text) {
    g.write();
    const outcome o = g.verify();
    INFO(text << ": " << o.out);
    CHECK(o.code == 1);
    CHECK(has(o.out, text));
    CHECK(last_line(o.out) == "0 passed, 1 failed, 0 skipped");
  };
  {
    golden_copy g;
    g.first()["params"]["nonsense"] = 3;
    expect(g, "param 'nonsense'");
  }
  {
    golden_copy g;
    g.first()["params"]["round_sf"] = "perhaps";
    expect(g, "must be true or false");
  }
  {
    golden_copy g;
    g.first()["params"]["num_tokens"] = 6;
    expect(g, "num_tokens = 6: the shapes say 5");
  }
  {
    golden_copy g;
    g.array("out")["name"] = "result";
    expect(g, "has no tensor of this name");
  }
  {
    golden_copy g;
    g.array("out")["role"] = "inout_before";
    g.array("out").erase("compare");
    g.array("x")["role"] = "out";
    g.array("x")["compare"] = {{"kind", "bits"}};
    expect(g, "is an input of the operation");
  }
  {
    golden_copy g;
    g.array("out")["compare"]["kind"] = "roughly";
    expect(g, "kind 'roughly' is unknown");
  }
  {
    golden_copy g;
    g.array("out")["compare"]["atol"] = 1;
    expect(g, "unknown key 'atol'");
  }
  {
    golden_copy g;
    g.array("out")["compare"]["rows"] = "good_rows";
    expect(g, "good_rows");
  }
  {
    golden_copy g;
    g.array("out")["shape"][0] = 4;
    expect(g, "the manifest says");
  }
  {
    golden_copy g;
    g.array("x")["dtype"] = "f32";
    expect(g, "is stored as");
  }
  {
    golden_copy g;
    fs::remove(g.folder / "quant" / g.array("x")["file"].get<std::string>());
    expect(g, "cannot be opened");
  }
  {
    golden_copy g;
    g.first()["params"]["round_sf"] = true;
    g.first()["params"]["use_e4m3_sf"] = true;
    expect(g, "excludes round_sf");
  }
  {
    golden_copy g;
    std::ofstream(g.folder / (golden_op + ".json")) << "{";
    CHECK(g.verify().code == 1);
  }
  {
    golden_copy g;
    fs::copy(g.folder / "quant/per_token_cast.json", g.folder / "quant/nonsense.json");
    const outcome o = portile_command("verify --cases " + g.folder.string() + " --op quant.nonsense");
    CHECK(o.code == 1);
    g.manifest["op"] = "quant.nonsense";
    std::ofstream(g.folder / "quant/nonsense.json") << g.manifest;
    const outcome unknown = portile_command("verify --cases " + g.folder.string() + " --op quant.nonsense");
    CHECK(unknown.code == 1);
    CHECK(has(unknown.out, "the operation is unknown"));
  }
}

TEST_CASE("portile verify fails when a filter matches nothing") {
  for (const char* filter : {"--op nonsense.*", "--op quant.per_token_cast --case nonsense",
                             "--op quant.per_token_cast --impl nonsense"}) {
    const outcome o = portile_command(std::string("verify --cases " PORTILE_GOLDEN_SOURCE " ") + filter);
    INFO(filter << ": " << o.out << o.err);
    CHECK(o.code == 1);
    CHECK(has(last_line(o.out), "0 passed, 0 failed, "));
    CHECK_FALSE(o.err.empty());
  }
}
