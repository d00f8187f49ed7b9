#pragma once
// Entries of kernels that use matrix instructions: one for each part, "hip.mfma.gfx942" say. Compiled, never
// run on a device; the emulator's wave64 device takes all of them.
#include "backends/hip/cdna/product.hpp"

namespace portile::hip {

/// gpu::nt_by<for_part<gfx942>::product> computes tiles by that part's instructions.
template <class Part>
struct for_part {
  template <class A, class B>
  using product = matrix_product<Part, A, B>;
  template <class T>
  using transposed = transposed_matrix_product<Part, T>;
};

/// I::launch(const gpu::context&, const P&) takes whatever the contract takes.
template <class Part, class P, class I>
struct mfma : gpu::simt<P, I> {
  static plugin::verdict supports(const portile_device_info& device, const P&) {
    const std::string_view arch = device.arch;
    if (device.wave_size != 64)
      return plugin::refuse("needs waves of 64 lanes, the device has " + std::to_string(device.wave_size));
    if (arch != Part::name && arch != "emulated")
      return plugin::refuse(std::string("for ") + Part::name + ", the device is " + device.arch);
    std::string reason = gpu::arch_refusal(device);
    return reason.empty() ? plugin::accept() : plugin::refuse(std::move(reason));
  }
};

/// "hip.mfma.gfx942"
template <class Part>
struct entry_name {
  char text[32] = {};
  constexpr entry_name() {
    char* to = text;
    for (const char* from : {gpu::platform_name, ".mfma.", Part::name})
      while (*from) *to++ = *from++;
  }
};
template <class Part>
inline constexpr entry_name<Part> name_of{};

template <class Part, class P, class I>
portile_implementation make_mfma() {
  return plugin::make_implementation<P, mfma<Part, P, I>>(name_of<Part>.text, gpu::platform_kind,
                                                          PORTILE_GPU_ARCHS);
}

}  // namespace portile::hip
