#pragma once
#include <array>
#include <cstddef>
#include <string_view>

#include <portile/core/status.hpp>

namespace portile {

/// A short text attribute (at most 31 characters) that is part of a problem struct: trivially copyable, so
/// that a problem can cross the plug-in boundary.
class word {
 public:
  static constexpr std::size_t capacity = 31;
  constexpr word() = default;
  constexpr word(const char* text) : word(std::string_view(text)) {}
  constexpr word(std::string_view text) {
    if (text.size() > capacity)
      throw error(status_code::invalid_argument, "text attribute longer than 31 characters");
    for (std::size_t i = 0; i < text.size(); ++i) text_[i] = text[i];
    size_ = static_cast<unsigned char>(text.size());
  }
  constexpr std::string_view view() const { return {text_.data(), size_}; }
  constexpr operator std::string_view() const { return view(); }
  constexpr bool empty() const { return size_ == 0; }
  friend constexpr bool operator==(const word& a, const word& b) { return a.view() == b.view(); }
  friend constexpr bool operator==(const word& a, std::string_view b) { return a.view() == b; }
  friend constexpr bool operator==(const word& a, const char* b) { return a.view() == std::string_view(b); }

 private:
  std::array<char, capacity> text_{};
  unsigned char size_ = 0;
};

}  // namespace portile
