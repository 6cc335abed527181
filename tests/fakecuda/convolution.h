// Convolutions of the fake cuDNN, which both of its interfaces offer, on the fake driver's memory: NCHW, single precision.
//
// The work runs in stream order. A workspace is filled with a pattern before the work and read back after it; where it has
// changed meanwhile, or was given to something else, the results become NaN, as a real algorithm's would become wrong.
// Algorithms that cuDNN says are not deterministic add in an order left to chance. Without CUDNN_FMA_MATH, inputs are rounded
// to TF32, as tensor cores do.
#pragma once
#include "driver.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

namespace {
enum Status { SUCCESS = 0, BAD_PARAM = 2000, MISALIGNED_POINTER = 2003, NOT_SUPPORTED = 3000, EXECUTION_FAILED = 5000 };
enum Pass { FORWARD, BACKWARD_DATA, BACKWARD_FILTER };
struct Handle { CUstream stream = nullptr; };
struct Tensor {
  int n, c, h, w;
  size_t count() const { return size_t(n) * c * h * w; }
};
enum Math { DEFAULT_MATH, TENSOR_OP_MATH, TENSOR_OP_MATH_ALLOW_CONVERSION, FMA_MATH };
struct Convolution { int pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w, groups = 1, math = DEFAULT_MATH; };

constexpr int ALGORITHMS[] = {8, 6, 7};
constexpr size_t NONE = ~size_t(0);
constexpr size_t TENSOR_ALIGNMENT = 16, WORKSPACE_ALIGNMENT = 256;  // the latter as of any allocation; cuDNN documents none

// Bytes of an algorithm's workspace. Fused Winograd, direct convolution and strided transforms are not supported.
size_t workspace(Pass pass, int algorithm, const Tensor &x, const Tensor &w, const Tensor &y, const Convolution &c) {
  size_t table = 4 * (size_t(y.h) * y.w + size_t(w.c) * w.h * w.w);
  bool transforms = c.stride_h == 1 && c.stride_w == 1 && std::min(w.h, w.w) > c.pad_h;
  if (pass == FORWARD) switch (algorithm) {
    case 0: return 0;
    case 1: return table;
    case 2: return 4 * size_t(x.c) * w.h * w.w * y.h * y.w;
    case 4: case 5: return transforms ? 4 * w.count() : NONE;
    case 7: return transforms && w.h == w.w && (w.h == 3 || w.h == 5) ? 4 * w.count() : NONE;
    default: return NONE;
  }
  int fft = 2, tiling = pass == BACKWARD_DATA ? 3 : 6;
  if (algorithm <= 1) return 0;
  if (pass == BACKWARD_FILTER && algorithm == 3) return table;
  if (algorithm == fft || algorithm == tiling) return transforms ? 4 * w.count() : NONE;
  if (algorithm == 5) return transforms && w.h == w.w && (w.h == 3 || w.h == 5) ? 4 * w.count() : NONE;
  return NONE;
}

// cuDNN: backward filter 0 and 3, and backward data 0, add atomically.
bool is_deterministic(Pass pass, int algorithm) {
  return pass == FORWARD || (algorithm != 0 && (pass == BACKWARD_DATA || algorithm != 3));
}

// Rows of x and y that a tap of a filter joins: f(row of x at the first column, row of y, weight, columns, stride). The
// loops over images, output channels and rows of the output begin at `turn` and go round.
template <class F> void rows(const Tensor &x, const Tensor &w, const Tensor &y, const Convolution &c, size_t turn, F f) {
  int group_out = y.c / c.groups, first = int(turn % y.h);
  for (int image = 0; image < y.n; ++image)
    for (int output = 0; output < y.c; ++output)
      for (int ch = 0; ch < w.c; ++ch)
        for (int r = 0; r < w.h; ++r)
          for (int s = 0; s < w.w; ++s) {
            int n = int((image + turn) % y.n), k = int((output + turn) % y.c);
            int channel = k / group_out * w.c + ch, shift = s * c.dilation_w - c.pad_w;
            int begin = shift < 0 ? (-shift + c.stride_w - 1) / c.stride_w : 0;
            int end = std::min(y.w, (x.w - 1 - shift) / c.stride_w + 1);
            if (x.w - 1 - shift < 0 || begin >= end) continue;
            size_t from = (size_t(n) * x.c + channel) * x.h * x.w + begin * c.stride_w + shift;
            size_t to = (size_t(n) * y.c + k) * y.h * y.w + begin, at = ((size_t(k) * w.c + ch) * w.h + r) * w.w + s;
            for (int row = 0, p = first; row < y.h; ++row, p = p + 1 == y.h ? 0 : p + 1) {
              int i = p * c.stride_h - c.pad_h + r * c.dilation_h;
              if (i < 0 || i >= x.h) continue;
              f(from + size_t(i) * x.w, to + size_t(p) * y.w, at, end - begin, c.stride_w);
            }
          }
}

// A number with the 10 bits of mantissa of TF32, rounded to nearest.
float to_tf32(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (std::isfinite(value)) bits = (bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFFu;
  std::memcpy(&value, &bits, 4);
  return value;
}

void compute(Pass pass, const Tensor &x, float *px, const Tensor &w, float *pw, const Tensor &y, float *py, const Convolution &c, float beta, size_t turn) {
  std::vector<float> rounded[3];
  auto round = [&](float *&values, size_t n, int which) {
    rounded[which].resize(n);
    std::transform(values, values + n, rounded[which].begin(), to_tf32);
    values = rounded[which].data();
  };
  if (c.math != FMA_MATH) {
    if (pass != BACKWARD_DATA) round(px, x.count(), 0);
    if (pass != BACKWARD_FILTER) round(pw, w.count(), 1);
    if (pass != FORWARD) round(py, y.count(), 2);
  }
  float *result = pass == FORWARD ? py : pass == BACKWARD_DATA ? px : pw;
  size_t count = pass == FORWARD ? y.count() : pass == BACKWARD_DATA ? x.count() : w.count();
  if (beta == 0) std::fill(result, result + count, 0.0f);
  if (pass == FORWARD)
    rows(x, w, y, c, turn, [=](size_t i, size_t o, size_t at, int n, int stride) {
      for (int q = 0; q < n; ++q) py[o + q] += pw[at] * px[i + q * stride];
    });
  if (pass == BACKWARD_DATA)
    rows(x, w, y, c, turn, [=](size_t i, size_t o, size_t at, int n, int stride) {
      for (int q = 0; q < n; ++q) px[i + q * stride] += pw[at] * py[o + q];
    });
  if (pass == BACKWARD_FILTER)
    rows(x, w, y, c, turn, [=](size_t i, size_t o, size_t at, int n, int stride) {
      float sum = 0;
      for (int q = 0; q < n; ++q) sum += px[i + q * stride] * py[o + q];
      pw[at] += sum;
    });
}

int convolve(Pass pass, Handle *h, const float *alpha, const Tensor &x, const void *px, const Tensor &w, const void *pw, const Tensor &y, const void *py,
             const Convolution &c, int algorithm, void *space, size_t given, const float *beta) {
  if (algorithm < 0 || algorithm >= ALGORITHMS[pass] || *alpha != 1 || (*beta != 0 && *beta != 1)) return BAD_PARAM;
  size_t needed = workspace(pass, algorithm, x, w, y, c);
  if (needed == NONE) return NOT_SUPPORTED;
  if (fakecuda_refuses(pass, algorithm)) return NOT_SUPPORTED;
  if (needed > given || (needed && !fakecuda_holds(space, needed))) return BAD_PARAM;
  for (const void *tensor : {px, pw, py}) if ((uintptr_t)tensor % TENSOR_ALIGNMENT) return MISALIGNED_POINTER;
  if (needed && (uintptr_t)space % WORKSPACE_ALIGNMENT) return MISALIGNED_POINTER;
  if (!fakecuda_holds(px, 4 * x.count()) || !fakecuda_holds(pw, 4 * w.count()) || !fakecuda_holds(py, 4 * y.count())) return EXECUTION_FAILED;
  float factor = *beta;
  bool varies = !is_deterministic(pass, algorithm);
  auto *work = new std::function<void()>([=] {
    auto *pattern = (uint32_t *)fakecuda_shadow(needed ? space : nullptr, 4);
    for (size_t i = 0; i < needed / 4; ++i) pattern[i] = uint32_t(i) ^ 0x5EED5EED;
    auto *x_host = (float *)fakecuda_shadow(px, 4), *w_host = (float *)fakecuda_shadow(pw, 4), *y_host = (float *)fakecuda_shadow(py, 4);
    compute(pass, x, x_host, w, w_host, y, y_host, c, factor, varies ? fakecuda_turn() : 0);
    bool intact = true;
    for (size_t i = 0; i < needed / 4; ++i) intact &= pattern[i] == (uint32_t(i) ^ 0x5EED5EED);
    float *result = pass == FORWARD ? y_host : pass == BACKWARD_DATA ? x_host : w_host;
    if (!intact) *result = NAN;
    for (size_t i = 0; i < needed / 4; ++i) pattern[i] = ~0u;
  });
  Uses uses = {{px, 4 * x.count()}, {pw, 4 * w.count()}, {py, 4 * y.count()}, {space, needed}};
  return fakecuda_enqueue(h->stream, work, uses) == CUDA_SUCCESS ? SUCCESS : EXECUTION_FAILED;
}
}  // namespace
