"""Portile from Python: every operation by its name and the names of its fields.

    import torch, portile
    x = torch.randn(4096, 7168, dtype=torch.bfloat16, device="cuda")
    out, out_sf = portile.empty_outputs("quant.per_token_cast", like=x, x=x, num_per_channels=128).values()
    portile.run("quant.per_token_cast", x=x, out=out, out_sf=out_sf, num_per_channels=128)

Tensors are anything that speaks DLPack (torch, numpy, CuPy, JAX, ...) and stay the caller's; nothing is copied.
Work goes to the device of the tensors, on the current stream of torch where torch is the one that brings them
(`stream=` takes any other by its address), and on the host it is done when the call returns.

Errors: ValueError (a rule of the operation), NotImplementedError (no implementation takes it; the text lists them
all and why), MemoryError, RuntimeError.
"""

import sys
from pathlib import Path

import tvm_ffi

__all__ = [
    "Plan", "Spec", "Typed", "check", "declared", "devices", "empty_outputs", "explain", "force", "infer", "ops",
    "plan", "run", "spec", "typed",
]

tvm_ffi.register_error("NotImplementedError", NotImplementedError)
_native = tvm_ffi.load_module(Path(__file__).parent / "libportile_python.so")
_run, _plan, _infer, _declared, _check, _explain, _ops, _devices, _force = (
    _native[name] for name in ("run", "plan", "infer", "declared", "check", "explain", "ops", "devices", "force"))


class Typed:
    """A tensor, or a list of them, whose memory is to be read as another element type of the same size."""

    __slots__ = ("dtype", "tensor")

    def __init__(self, tensor, dtype):
        self.tensor, self.dtype = tensor, dtype

    def __repr__(self):
        return f"portile.typed({self.tensor!r}, {self.dtype!r})"


class Spec:
    """Stands for a tensor where only its type and shape matter: infer, check, explain."""

    __slots__ = ("dtype", "shape", "strides")

    def __init__(self, dtype, shape, strides=None):
        self.dtype, self.shape, self.strides = dtype, tuple(shape), None if strides is None else tuple(strides)

    def __repr__(self):
        return f"portile.spec({self.dtype!r}, {self.shape}" + (f", {self.strides})" if self.strides else ")")


typed = Typed
spec = Spec

# Element types that frameworks have and their DLPack exporters may lack: passed as bytes and a name.
_EXTENSION_TYPES = {
    "bfloat16": ("uint16", "bf16"),
    "float8_e4m3fn": ("uint8", "e4m3"),
    "float8_e4m3fnuz": ("uint8", "e4m3fnuz"),
    "float8_e5m2": ("uint8", "e5m2"),
    "float8_e8m0fnu": ("uint8", "e8m0"),
    "float4_e2m1fn_x2": ("uint8", "e2m1x2"),
}


def _from_typed(name, value):
    return f"{name}:{value.dtype}", _untyped(value.tensor)


def _from_spec(name, value):
    return name, (value.dtype, value.shape, value.strides)


def _from_list(name, values):
    pairs = [_pair(name, value) for value in values]
    keys = {key for key, _ in pairs}
    if len(keys) > 1:
        raise ValueError(f"{name}: the tensors of a list must have one element type, not {sorted(keys)}")
    return (keys.pop() if keys else name), [value for _, value in pairs]


def _from_numpy(name, value):
    if value.dtype.isbuiltin == 1:
        return name, value
    plain, dtype = _EXTENSION_TYPES.get(value.dtype.name, (None, None))
    if plain is None:
        raise ValueError(f"{name}: Portile has no element type {value.dtype}")
    return f"{name}:{dtype}", value.view(plain)


def _from_numpy_bool(name, value):
    return name, bool(value)


def _from_torch(name, value):
    entry = _torch_types.get(value.dtype)
    return (name, value) if entry is None else (f"{name}:{entry[1]}", value.view(entry[0]))


def _untyped(value):
    """The bytes of a value of an extension type; any other as it is."""
    return _pair("", value)[1]


_torch_types = {}
_converters = {Typed: _from_typed, Spec: _from_spec, list: _from_list, tuple: _from_list}


def _learn(cls):
    """The converter of a class met for the first time. Frameworks are looked up, never imported."""
    root = cls.__module__.partition(".")[0]
    convert = None
    if root == "numpy":
        numpy = sys.modules["numpy"]
        if issubclass(cls, numpy.ndarray):
            convert = _from_numpy
        elif issubclass(cls, numpy.bool_):
            convert = _from_numpy_bool
    elif "torch" in sys.modules and issubclass(cls, sys.modules["torch"].Tensor):
        torch = sys.modules["torch"]
        for dtype, (plain, portile_name) in _EXTENSION_TYPES.items():
            if dtype.startswith("float") and hasattr(torch, dtype):
                _torch_types[getattr(torch, dtype)] = (getattr(torch, plain), portile_name)
        convert = _from_torch
    _converters[cls] = convert
    return convert


def _pair(name, value):
    cls = type(value)
    try:
        convert = _converters[cls]
    except KeyError:
        convert = _learn(cls)
    return (name, value) if convert is None else convert(name, value)


def _flat(fields):
    out = []
    for name, value in fields.items():
        out += _pair(name, value)
    return out


def _plain(value):
    """Containers of tvm_ffi as Python's own."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
        return str(value) if isinstance(value, str) else value
    if hasattr(value, "items"):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value]


def run(op, *, implementation=None, stream=None, checked=False, host_fallback=False, max_blocks=0, **fields):
    """Runs `op`. Fields are tensors, lists of tensors, numbers and strings; those left out or None are absent or
    have their default.

    implementation  force this one, e.g. "reference"
    stream          address of a stream instead of the current one
    checked         wait, and raise when the data broke a rule (an id out of range, ...)
    host_fallback   copy to the host where the device has no implementation
    max_blocks      upper bound of a launch grid; never changes a result
    """
    _run(op, implementation, stream, checked, host_fallback, max_blocks, *_flat(fields))


class Plan:
    """A choice made once: runs of problems that differ in the tensors' addresses only (modulo 256) skip it."""

    def __init__(self, op, native):
        self.op = op
        self.implementation = str(native["implementation"])
        self.backend = str(native["backend"])
        self.workspace_bytes = native["workspace_bytes"]
        self.host_fallback = native["host_fallback"]
        self._run = native["run"]

    def run(self, **fields):
        """On the stream that was current when the plan was made."""
        self._run(*_flat(fields))

    def __repr__(self):
        return f"<portile plan of {self.op}: {self.implementation}>"


def plan(op, *, implementation=None, stream=None, checked=False, host_fallback=False, max_blocks=0, **fields):
    """Chooses an implementation and gets its workspace, so that later runs do neither; options as in `run`."""
    return Plan(op, _plan(op, implementation, stream, checked, host_fallback, max_blocks, *_flat(fields)))


def infer(op, **fields):
    """{field: {dtype, shape, strides, worst_case}} of every output that these inputs and options give. Inputs may be
    `portile.spec(dtype, shape)`, and a dimension that no input tells is given by its name. With `worst_case` an
    extent depends on the data and this is its bound."""
    return {t.pop("field"): t for t in _plain(_infer(op, *_flat(fields)))}


def declared(op, tensors=None, **values):
    """The declared shape of every required tensor and of those named in `tensors` (a list, or {field: dtype}), from
    dimensions and attributes: {field: {dtype, shape, strides, worst_case}}."""
    wanted = tensors if isinstance(tensors, dict) else dict.fromkeys(tensors or (), "")
    return {t.pop("field"): t for t in _plain(_declared(op, wanted, *_flat(values)))}


def check(op, **fields):
    """Raises ValueError when the problem breaks a rule of the operation; runs nothing."""
    _check(op, *_flat(fields))


class Explanation(dict):
    """{op, device, error, chosen, candidates}; prints as text."""

    def __str__(self):
        return self["text"]


def explain(op, *, device=None, host_fallback=False, **fields):
    """Every candidate with the reason it was refused, and the one chosen. `device` is that of the tensors, another
    ("cuda:0"), or an architecture that need not be here ("sm_90")."""
    return Explanation(_plain(_explain(op, device, host_fallback, *_flat(fields))))


def ops():
    """Every operation: name, family, summary, tolerance, fields, dimensions, implementations, ..."""
    return _plain(_ops())


def devices():
    """Every device of this node, the host last: device, name, arch, aspects."""
    return _plain(_devices())


def force(rules=""):
    """Forces implementations as PORTILE_IMPL does: "gemm.nt=cuda.simt,moe.*=reference"; empty undoes it."""
    _force(rules)


_NUMPY_TYPES = {
    "f32": "float32", "f64": "float64", "f16": "float16", "bf16": "uint16", "e4m3": "uint8", "e4m3fnuz": "uint8",
    "e5m2": "uint8", "e2m1x2": "uint8", "e5m6x8": "uint8", "ue8m0x4": "int32", "i8": "int8", "i16": "int16",
    "i32": "int32", "i64": "int64", "u8": "uint8", "u32": "uint32", "boolean": "bool", "bool": "bool",
}  # yapf: disable
_FRAMEWORK_TYPES = {
    "bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e4m3fnuz": "float8_e4m3fnuz", "e5m2": "float8_e5m2",
}


def empty_like_spec(like, dtype, shape, strides=None):
    """Uninitialised memory of this type and shape from the framework of `like`, on its device. A type that the
    framework lacks comes as `typed` bytes."""
    strides = list(strides) if strides is not None else None
    native, plain = _FRAMEWORK_TYPES.get(dtype, _NUMPY_TYPES[dtype]), _NUMPY_TYPES[dtype]
    if type(like).__module__.partition(".")[0] == "numpy":
        import numpy
        span = 1 + sum((n - 1) * s for n, s in zip(shape, strides)) if strides and all(shape) else None
        if span is None:
            array = numpy.empty(shape, plain)
        else:
            flat = numpy.empty(span, plain)
            array = numpy.lib.stride_tricks.as_strided(flat, shape, [s * flat.itemsize for s in strides])
        if native != plain and "ml_dtypes" in sys.modules:
            return array.view(getattr(sys.modules["ml_dtypes"], native))
        return array if native == plain and dtype not in ("e2m1x2", "e5m6x8") else Typed(array, dtype)
    torch = sys.modules["torch"]
    kind = getattr(torch, native, None)
    make = torch.empty if strides is None else lambda s, **kw: torch.empty_strided(s, strides, **kw)
    if kind is not None and dtype not in ("e2m1x2", "e5m6x8"):
        return make(tuple(shape), dtype=kind, device=like.device)
    return Typed(make(tuple(shape), dtype=getattr(torch, plain), device=like.device), dtype)


def empty_outputs(op, *, like, **fields):
    """{field: tensor} of every output that `infer` lists, allocated by torch or numpy like the tensor `like`."""
    return {name: empty_like_spec(like, o["dtype"], o["shape"], o["strides"]) for name, o in infer(op, **fields).items()}
