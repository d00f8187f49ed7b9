#include <portile/kernels/quant/formats.hpp>
#include <portile/kernels/quant/scales.hpp>

namespace portile::quant {

void formats::check(checker& c) const {
  const bool encodes = direction == "encode";
  const tensor &values = encodes ? x : out, &codes = encodes ? out : x;
  const dtype type = fmt == "ue8m0" ? dtype::u8 : dtype_of_format(fmt, dtype::none);
  const bool single_e2m1 = encodes && fmt == "e2m1" && codes.dtype == dtype::u8;
  c.need(values.dtype == dtype::f32, encodes ? "x.dtype" : "out.dtype", values.dtype, "must be f32");
  c.need(codes.dtype == type || single_e2m1, encodes ? "out.dtype" : "x.dtype", codes.dtype,
         "must be " + std::string(to_string(type)) + (encodes && fmt == "e2m1" ? " or u8" : "") +
             " for fmt '" + std::string(fmt.view()) + "'");
  check_same_shape(c, x, out);
}

void formats::infer(inference& i) const {
  const dtype type = direction == "decode"    ? dtype::f32
                     : fmt == "ue8m0"         ? dtype::u8
                     : out.dtype == dtype::u8 ? dtype::u8
                                              : dtype_of_format(fmt, dtype::e4m3);
  if (x.defined())
    infer_same_shape(i, "out", type, x);
  else
    i.out("out", type);
}

}  // namespace portile::quant
