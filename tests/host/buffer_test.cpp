// The memory that golden cases run in must notice every stray write.
#include <fstream>

#include "checker/buffer.hpp"
#include "checker/npy.hpp"
#include "support/catch.hpp"

using namespace portile;
using namespace portile::golden;

TEST_CASE("strided elements go out and come back") {
  queue q{cpu_selector};
  guarded_buffer b(q, {dtype::bf16, {2, 3}, {1, 4}}, false);
  const std::vector<unsigned char> elements{1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6};
  b.reset(0xFF, &elements);
  const auto* memory = static_cast<const unsigned char*>(b.data());
  CHECK(memory[8] == 2);     // element 0, 1 is four elements further
  CHECK(memory[2] == 4);     // element 1, 0
  CHECK(memory[4] == 0xFF);  // padding
  b.download();
  CHECK(b.elements() == elements);
  CHECK(b.stray_writes(true).empty());
}

TEST_CASE("stray writes are found") {
  queue q{cpu_selector};
  const bool on_host = GENERATE(false, true);
  guarded_buffer b(q, {dtype::f32, {2, 2}, {4, 1}}, on_host);  // 24 bytes: 8, then 8 of padding, then 8
  auto* memory = static_cast<unsigned char*>(b.data());
  const auto after_writing = [&](int byte, bool read_only) {
    b.reset(0x5A, nullptr);
    memory[byte] = 7;
    b.download();
    return b.stray_writes(read_only);
  };
  CHECK(after_writing(0, false).empty());
  CHECK(after_writing(23, false).empty());
  CHECK(after_writing(0, true).find("byte 0 of an input") != std::string::npos);
  CHECK(after_writing(8, false).find("byte 8, between its rows") != std::string::npos);
  CHECK(after_writing(24, false).find("0 bytes after its end") != std::string::npos);
  CHECK(after_writing(-1, false).find("1 bytes before its start") != std::string::npos);
  CHECK(after_writing(24 + 511, false).find("after its end (0x5a became 0x07)") != std::string::npos);
}

TEST_CASE("empty arrays have guards too") {
  queue q{cpu_selector};
  guarded_buffer b(q, {dtype::f32, {0, 5}, {5, 1}}, false);
  const std::vector<unsigned char> nothing;
  b.reset(0x5A, &nothing);
  static_cast<unsigned char*>(b.data())[0] = 7;
  b.download();
  CHECK(b.elements().empty());
  CHECK_FALSE(b.stray_writes(false).empty());
}

TEST_CASE(".npy files are read, and bad ones refused") {
  const std::string file = "portile_npy_test.npy";
  const auto write = [&](const std::string& descr, const std::string& order, const std::string& shape,
                         std::size_t bytes) {
    std::string header =
        "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
    header.resize(117, ' ');
    header += '\n';
    std::ofstream out(file, std::ios::binary);
    out << std::string("\x93NUMPY\x01\x00\x76\x00", 10) << header << std::string(bytes, 'x');
  };
  write("<f4", "False", "(2, 3)", 24);
  const npy_array a = read_npy(file);
  CHECK(a.storage == "<f4");
  CHECK(a.shape == std::vector<std::int64_t>{2, 3});
  CHECK(a.bytes.size() == 24);
  write("<i8", "False", "(3,)", 24);
  CHECK(read_npy(file).shape == std::vector<std::int64_t>{3});
  write("|u1", "False", "()", 1);
  CHECK(read_npy(file).shape.empty());
  write("|u1", "False", "(0, 7)", 0);
  CHECK(read_npy(file).shape == std::vector<std::int64_t>{0, 7});

  write("<f4", "True", "(2, 3)", 24);
  CHECK_THROWS(read_npy(file));
  write(">f4", "False", "(2, 3)", 24);
  CHECK_THROWS(read_npy(file));
  write("<f4", "False", "(2, 3)", 23);
  CHECK_THROWS(read_npy(file));
  write("<f4", "False", "(2, -3)", 24);
  CHECK_THROWS(read_npy(file));
  std::ofstream(file) << "no numpy";
  CHECK_THROWS(read_npy(file));
  std::remove(file.c_str());
  CHECK_THROWS(read_npy(file));
}
