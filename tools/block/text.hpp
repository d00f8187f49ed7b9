#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace portile::block {

/// Token ids of a file: its words (runs of bytes other than space, tab, line ends, form feed and NUL), each
/// hashed to a non-negative int32. Any bytes will do. Throws invalid_argument for a file that cannot be read
/// or holds no word.
std::vector<std::int32_t> read_tokens(const std::string& file);

/// Row t of the result is the token t and the `n - 1` before it, newest first; 0 stands before the first
/// token.
std::vector<std::int32_t> ngrams(const std::vector<std::int32_t>& tokens, std::int64_t count, std::int64_t n);

/// 64-bit FNV-1a of a byte sequence, continued from `state`.
inline constexpr std::uint64_t fnv_start = 14695981039346656037ull;
std::uint64_t fnv1a(const void* data, std::size_t bytes, std::uint64_t state = fnv_start);

}  // namespace portile::block
