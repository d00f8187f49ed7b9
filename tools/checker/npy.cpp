#include "npy.hpp"

#include <bit>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>

#include <portile/core/status.hpp>

namespace portile::golden {
namespace {

static_assert(std::endian::native == std::endian::little,
              "golden files are little-endian and are used in place");

[[noreturn]] void bad(const std::filesystem::path& file, const std::string& what) {
  throw error(status_code::invalid_argument, file.string() + ": " + what);
}

// The text after 'key': in the header, which is a Python dictionary.
std::string_view value_of(std::string_view header, std::string_view key) {
  const auto at = header.find("'" + std::string(key) + "':");
  if (at == std::string_view::npos) return {};
  std::string_view v = header.substr(at + key.size() + 3);
  while (!v.empty() && v.front() == ' ') v.remove_prefix(1);
  return v;
}

std::int64_t item_size(std::string_view storage) {
  return storage.size() == 3 && storage[2] >= '1' && storage[2] <= '8' ? storage[2] - '0' : 0;
}

}  // namespace

std::string npy_storage(dtype type) {
  switch (type) {
    case dtype::f32:
      return "<f4";
    case dtype::f64:
      return "<f8";
    case dtype::bf16:
    case dtype::f16:
      return "<u2";
    case dtype::e4m3:
    case dtype::e4m3fnuz:
    case dtype::e5m2:
    case dtype::e2m1x2:
    case dtype::e5m6x8:
    case dtype::u8:
    case dtype::boolean:
      return "|u1";
    case dtype::ue8m0x4:
    case dtype::i32:
      return "<i4";
    case dtype::i8:
      return "|i1";
    case dtype::i16:
      return "<i2";
    case dtype::i64:
      return "<i8";
    case dtype::u32:
      return "<u4";
    case dtype::none:
      break;
  }
  return {};
}

npy_array read_npy(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) bad(file, "cannot be opened");
  const std::vector<unsigned char> all{std::istreambuf_iterator<char>(in), {}};
  constexpr unsigned char magic[] = {0x93, 'N', 'U', 'M', 'P', 'Y'};
  if (all.size() < 12 || std::memcmp(all.data(), magic, sizeof magic) != 0) bad(file, "no .npy file");
  const int version = all[6];
  if (version < 1 || version > 3)
    bad(file, "version " + std::to_string(version) + " of the format is not known");
  const std::size_t start = version == 1 ? 10 : 12;
  std::size_t length = all[8] + std::size_t{all[9]} * 256;
  if (version > 1) length += (std::size_t{all[10]} << 16) + (std::size_t{all[11]} << 24);
  if (all.size() < start + length) bad(file, "its header is cut off");
  const std::string_view header(reinterpret_cast<const char*>(all.data()) + start, length);

  npy_array a;
  const std::string_view descr = value_of(header, "descr");
  if (descr.size() < 5 || descr[0] != '\'') bad(file, "no simple element type");
  a.storage = descr.substr(1, descr.find('\'', 1) - 1);
  if (item_size(a.storage) == 0 || a.storage[0] == '>')
    bad(file, "element type " + a.storage + " is not known");
  if (!value_of(header, "fortran_order").starts_with("False")) bad(file, "is not C-ordered");
  std::string_view shape = value_of(header, "shape");
  if (shape.empty() || shape[0] != '(') bad(file, "no shape");
  shape = shape.substr(1, shape.find(')') - 1);
  std::int64_t count = 1;
  while (!shape.empty()) {
    if (shape[0] == ' ' || shape[0] == ',') {
      shape.remove_prefix(1);
      continue;
    }
    std::int64_t n = 0;
    const auto r = std::from_chars(shape.data(), shape.data() + shape.size(), n);
    if (r.ec != std::errc{} || n < 0) bad(file, "bad shape");
    a.shape.push_back(n);
    count *= n;
    shape.remove_prefix(static_cast<std::size_t>(r.ptr - shape.data()));
  }
  a.bytes.assign(all.begin() + static_cast<std::ptrdiff_t>(start + length), all.end());
  const std::int64_t want = count * item_size(a.storage);
  if (static_cast<std::int64_t>(a.bytes.size()) != want)
    bad(file, "holds " + std::to_string(a.bytes.size()) + " bytes of elements, its shape asks for " +
                  std::to_string(want));
  return a;
}

}  // namespace portile::golden
