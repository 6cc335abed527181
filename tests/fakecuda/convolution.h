// Convolutions of the fake cuDNN, which both of its interfaces offer, on the fake driver's memory: NCHW, single precision.
//
// The work runs in stream order. A workspace is filled with a pattern before the work and read back after it; where it has
// changed meanwhile, or was given to something else, the results become NaN, as a real algorithm's would become wrong.
#pragma once
#include <cuda.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

extern "C" void *fakecuda_shadow(const void *);
extern "C" bool fakecuda_holds(const void *, size_t);
extern "C" CUresult fakecuda_enqueue(CUstream, std::function<void()> *);
namespace {
enum Status { SUCCESS = 0, BAD_PARAM = 2000, NOT_SUPPORTED = 3000, EXECUTION_FAILED = 5000 };
enum Pass { FORWARD, BACKWARD_DATA, BACKWARD_FILTER };
struct Handle { CUstream stream = nullptr; };
struct Tensor {
  int n, c, h, w;
  size_t count() const { return size_t(n) * c * h * w; }
};
struct Convolution { int pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w, groups = 1; };

constexpr int ALGORITHMS[] = {8, 6, 7};
constexpr size_t NONE = ~size_t(0);

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
  int fft = 2, tiling = pass == BACKWARD_DATA ? 3 : 6, precomputed = pass == BACKWARD_DATA ? 1 : 3;
  if (algorithm == 0) return 0;
  if (algorithm == precomputed || algorithm == 1) return table;
  if (algorithm == fft || algorithm == tiling) return transforms ? 4 * w.count() : NONE;
  if (algorithm == 5) return transforms && w.h == w.w && (w.h == 3 || w.h == 5) ? 4 * w.count() : NONE;
  return NONE;
}

// Rows of x and y that a tap of a filter joins: f(row of x at the first column, row of y, weight, columns, stride).
template <class F> void rows(const Tensor &x, const Tensor &w, const Tensor &y, const Convolution &c, F f) {
  int group_out = y.c / c.groups;
  for (int n = 0; n < y.n; ++n)
    for (int k = 0; k < y.c; ++k)
      for (int ch = 0; ch < w.c; ++ch)
        for (int r = 0; r < w.h; ++r)
          for (int s = 0; s < w.w; ++s) {
            int channel = k / group_out * w.c + ch, shift = s * c.dilation_w - c.pad_w;
            int begin = shift < 0 ? (-shift + c.stride_w - 1) / c.stride_w : 0;
            int end = std::min(y.w, (x.w - 1 - shift) / c.stride_w + 1);
            if (x.w - 1 - shift < 0) continue;
            for (int p = 0; p < y.h; ++p) {
              int i = p * c.stride_h - c.pad_h + r * c.dilation_h;
              if (i < 0 || i >= x.h || begin >= end) continue;
              f(((size_t(n) * x.c + channel) * x.h + i) * x.w + begin * c.stride_w + shift, ((size_t(n) * y.c + k) * y.h + p) * y.w + begin,
                ((size_t(k) * w.c + ch) * w.h + r) * w.w + s, end - begin, c.stride_w);
            }
          }
}

void compute(Pass pass, const Tensor &x, float *px, const Tensor &w, float *pw, const Tensor &y, float *py, const Convolution &c, float beta) {
  float *result = pass == FORWARD ? py : pass == BACKWARD_DATA ? px : pw;
  size_t count = pass == FORWARD ? y.count() : pass == BACKWARD_DATA ? x.count() : w.count();
  if (beta == 0) std::fill(result, result + count, 0.0f);
  if (pass == FORWARD)
    rows(x, w, y, c, [=](size_t i, size_t o, size_t at, int n, int stride) {
      for (int q = 0; q < n; ++q) py[o + q] += pw[at] * px[i + q * stride];
    });
  if (pass == BACKWARD_DATA)
    rows(x, w, y, c, [=](size_t i, size_t o, size_t at, int n, int stride) {
      for (int q = 0; q < n; ++q) px[i + q * stride] += pw[at] * py[o + q];
    });
  if (pass == BACKWARD_FILTER)
    rows(x, w, y, c, [=](size_t i, size_t o, size_t at, int n, int stride) {
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
  if (needed > given || (needed && !fakecuda_holds(space, needed))) return BAD_PARAM;
  if (!fakecuda_holds(px, 4 * x.count()) || !fakecuda_holds(pw, 4 * w.count()) || !fakecuda_holds(py, 4 * y.count())) return EXECUTION_FAILED;
  float factor = *beta;
  auto *work = new std::function<void()>([=] {
    auto *pattern = (uint32_t *)fakecuda_shadow(needed ? space : nullptr);
    for (size_t i = 0; i < needed / 4; ++i) pattern[i] = uint32_t(i) ^ 0x5EED5EED;
    auto *x_host = (float *)fakecuda_shadow(px), *w_host = (float *)fakecuda_shadow(pw), *y_host = (float *)fakecuda_shadow(py);
    compute(pass, x, x_host, w, w_host, y, y_host, c, factor);
    bool intact = true;
    for (size_t i = 0; i < needed / 4; ++i) intact &= pattern[i] == (uint32_t(i) ^ 0x5EED5EED);
    float *result = pass == FORWARD ? y_host : pass == BACKWARD_DATA ? x_host : w_host;
    if (!intact) *result = NAN;
    for (size_t i = 0; i < needed / 4; ++i) pattern[i] = ~0u;
  });
  return fakecuda_enqueue(h->stream, work) == CUDA_SUCCESS ? SUCCESS : EXECUTION_FAILED;
}
}  // namespace
