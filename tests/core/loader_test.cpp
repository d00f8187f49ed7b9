// The plug-in loader, in child processes: each refusal is kept with file and reason and the rest goes on.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/child.hpp"
#include "core/fake.hpp"
#include "support/catch.hpp"

using namespace portile;
using namespace portile::test;
namespace fs = std::filesystem;

namespace {

std::string program(const std::string& arguments, const std::string& environment = "") {
  return child(environment + " " + program_folder() + "/portile_core_program " + arguments);
}
std::string listed(const std::string& path) { return program("list", "PORTILE_BACKEND_PATH=" + path); }

struct temporary_folder {
  fs::path path;
  temporary_folder() {
    std::string name = (fs::temp_directory_path() / "portile-XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~temporary_folder() {
    std::error_code ec;
    fs::remove_all(path, ec);
  }
};

}  // namespace

TEST_CASE("the loader refuses broken plug-ins, names file and reason, and goes on") {
  const struct {
    const char *name, *reason;
  } table[] = {
      {"bad_no_symbol", "no symbol portile_backend_entry"},
      {"bad_version", "ABI mismatch: version is 77, this library has 1"},
      {"bad_size", "ABI mismatch: size of portile_backend is"},
      {"bad_launch_size", "ABI mismatch: size of portile_launch is"},
      {"bad_entry", "this plug-in does not like Mondays"},
      {"bad_null_table", "the entry function gave no table"},
      {"bad_kind", "unknown kind of device 12"},
      {"bad_problem_size", "quant.per_token_cast bad: ABI mismatch: size of the problem is 3"},
      {"bad_incomplete", "implementation 0 is incomplete"},
  };
  for (const auto& row : table) {
    const std::string file = plugin_file(row.name);
    const std::string text = listed(file + ":" + plugin_file("fake_host"));
    CHECK_HAS(text, std::string(row.name) + " refused " + file);
    CHECK_HAS(text, row.reason);
    CHECK_HAS(text, "fake_host loaded");
    CHECK_HAS(text, "exit 0");
  }
  // The status of load_backend has the entry function's own code.
  CHECK_HAS(
      program("load " + plugin_file("bad_entry")),
      "load_backend: device_error: " + plugin_file("bad_entry") + ": this plug-in does not like Mondays");
}

TEST_CASE("files that are no plug-ins") {
  temporary_folder folder;
  const std::string text = (folder.path / "libportile_backend_text.so").string(),
                    missing = (folder.path / "nothing.so").string();
  std::ofstream(text) << "this is not an ELF file\n";
  const std::string out = listed(text + ":" + missing);
  CHECK_HAS(out, "text refused " + text);
  CHECK_HAS(out, "dlopen: ");
  CHECK_HAS(out, "nothing refused " + missing + " [] devices 0: cannot be read: No such file or directory");
  // A folder is searched for libportile_backend_*.so only.
  std::ofstream(folder.path / "libother.so") << "x";
  fs::copy_file(plugin_file("fake_host"), folder.path / "libportile_backend_copy.so");
  const std::string found = listed(folder.path.string());
  CHECK_HAS(found, "fake_host loaded");
  CHECK_HAS(found, "text refused");
  CHECK(found.find("libother") == std::string::npos);
  CHECK_HAS(listed((folder.path / "no-folder").string()), "cannot be read");
}

TEST_CASE("empty and relative entries of PORTILE_BACKEND_PATH never mean the current folder") {
  temporary_folder folder;
  fs::copy_file(plugin_file("fake_host"), folder.path / "libportile_backend_here.so");
  const auto in_folder = [&](const std::string& value) {
    return child("cd " + folder.path.string() + " && PORTILE_BACKEND_PATH='" + value + "' " +
                 program_folder() + "/portile_core_program list");
  };
  for (const char* entries : {":", "::", ""})
    CHECK(in_folder(entries).find("fake_host") == std::string::npos);
  const std::string around = in_folder(":" + plugin_file("twin1") + ":");
  CHECK_HAS(around, "twin1 loaded");
  CHECK(around.find("fake_host") == std::string::npos);
  for (const char* entry : {".", "libportile_backend_here.so", "./libportile_backend_here.so"}) {
    const std::string text = in_folder(entry);
    CHECK_HAS(text, "must be an absolute path");
    CHECK(text.find("fake_host loaded") == std::string::npos);
  }
  // Without the variable: the folder of libportile, not the current one.
  CHECK(child("cd " + folder.path.string() + " && " + program_folder() + "/portile_core_program list")
            .find("fake_host") == std::string::npos);
}

TEST_CASE("one file is loaded once, by whatever path, and a refusal is kept once") {
  temporary_folder folder;
  fs::create_symlink(plugin_file("twin1"), folder.path / "link.so");
  const std::string text = program("load " + plugin_file("twin1") + " " + (folder.path / "link.so").string() +
                                       " " + plugin_file("bad_entry") + " " + plugin_file("bad_entry"),
                                   "PORTILE_BACKEND_PATH=" + plugin_file("twin1"));
  const auto count = [&](const std::string& part) {
    int n = 0;
    for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
    return n;
  };
  INFO(text);
  CHECK(count("twin1 loaded") == 1);
  CHECK(count("counter 1 ") == 1);
  CHECK(count("bad_entry refused") == 1);
}

TEST_CASE("a plug-in without a driver has no device, gives the reason and still explains device models") {
  const std::string environment = "PORTILE_BACKEND_PATH=" + plugin_file("no_driver");
  CHECK_HAS(program("list", environment), "nodriver loaded " + plugin_file("no_driver") +
                                              " [1] devices 0: libfake.so.1: cannot open shared object file");
  CHECK_HAS(program("explain sm_100 32", environment), "cuda.nodriver (nodriver): yes");
  CHECK_HAS(program("explain sm_100 128", environment),
            "cuda.nodriver (nodriver): no: num_per_channels = 128: needs 32");
  CHECK_HAS(program("explain sm_90 32", environment),
            "cuda.nodriver (nodriver): no: arch = sm_90: needs sm_100");
  CHECK_HAS(program("explain gfx942 32", environment), "no: runs on cuda, the device is hip");
  CHECK_HAS(program("cast", environment), "unsupported: quant.per_token_cast: device = cpu");
}

TEST_CASE("the version script keeps same-named inline and static symbols of two plug-ins apart") {
  const std::string text = listed(plugin_file("twin1") + ":" + plugin_file("twin2"));
  CHECK_HAS(text, "[number 1 counter 1 static 101 template 1 global 1]");
  CHECK_HAS(text, "[number 2 counter 1 static 201 template 2 global 2]");
  // Without it the loader merges them, RTLD_LOCAL or not: unique symbols are looked up in every library.
  const std::string open = listed(plugin_file("open_twin1") + ":" + plugin_file("open_twin2"));
  CHECK(open.find("[number 2 counter 1 static 201 template 2 global 2]") == std::string::npos);
}

TEST_CASE("PORTILE_IMPL forces, refuses with the reason, and a malformed one is reported by every run") {
  const std::string reference = "PORTILE_BACKEND_PATH=" + plugin_file("no_driver");
  CHECK_HAS(program("cast", reference + " PORTILE_IMPL=quant.*=cuda.nodriver"),
            "the forced implementation 'cuda.nodriver' does not take it");
  for (const char* bad :
       {"quant.per_token_cast", "quant.nothing=reference", "=x", "a=", "quant.per_token_cast=reference,b"}) {
    const std::string text = program("cast", std::string("PORTILE_IMPL=") + bad);
    INFO(text);
    CHECK(text.find("PORTILE_IMPL: '") != text.rfind("PORTILE_IMPL: '"));  // twice
    CHECK(text.find("ran") == std::string::npos);
  }
  const std::string replaced = program("cast '' api", "PORTILE_IMPL=nonsense");
  CHECK_HAS(replaced, "invalid_argument: PORTILE_IMPL: 'nonsense': must be op=implementation");
}

TEST_CASE("PORTILE_LOG=load says what was looked at") {
  const std::string text =
      program("list", "PORTILE_LOG=load PORTILE_BACKEND_PATH=" + plugin_file("fake_gpu") + ":" +
                          plugin_file("bad_entry"));
  CHECK_HAS(text, "portile: load: the fake device says hello");
  CHECK_HAS(text, "loaded fake, 2 implementations, 2 devices");
  CHECK_HAS(text, "refused: this plug-in does not like Mondays");
}
