#pragma once
// Everything a user needs: tensors, devices, queues, every operation, run / plan / explain / check / infer.
#include <portile/core/dispatch.hpp>
#include <portile/core/log.hpp>
#include <portile/core/registry.hpp>
#include <portile/core/tensor.hpp>
#include <portile/core/version.hpp>
#include <portile/kernels/rand/generator.hpp>
#include <portile/ops.hpp>
