// The slice of cuBLAS that Pebbler calls, on the fake driver's memory: single-precision products, column-major.
//
// The first product of a handle allocates, as first uses of the real one may: it cannot be part of a capture.
#include "driver.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace {
enum Status { SUCCESS = 0, ALLOC_FAILED = 3, INVALID_VALUE = 7, EXECUTION_FAILED = 13 };
// Single precision stays that with all but the one that asks for tensor cores, which this cuBLAS does not have.
enum Math { DEFAULT_MATH = 0, PEDANTIC_MATH = 2 };
constexpr size_t WORKSPACE_ALIGNMENT = 256;
struct Handle { CUstream stream = nullptr; CUdeviceptr used = 0; };
}  // namespace

extern "C" {
int cublasCreate_v2(Handle **h) { *h = new Handle; return SUCCESS; }
int cublasDestroy_v2(Handle *h) {
  if (h->used) cuMemFree(h->used);
  delete h;
  return SUCCESS;
}
int cublasSetStream_v2(Handle *h, CUstream s) { h->stream = s; return SUCCESS; }
int cublasGetVersion_v2(Handle *, int *version) { *version = 130000; return SUCCESS; }
const char *cublasGetStatusString(int status) {
  switch (status) {
    case SUCCESS: return "the library call was successful";
    case ALLOC_FAILED: return "resource allocation failed";
    case INVALID_VALUE: return "an invalid value was passed";
    default: return "execution failed";
  }
}
int cublasSetMathMode(Handle *, int mode) { return mode == DEFAULT_MATH || mode == PEDANTIC_MATH ? SUCCESS : INVALID_VALUE; }
int cublasSetWorkspace_v2(Handle *, void *space, size_t n) { return n == 0 || ((uintptr_t)space % WORKSPACE_ALIGNMENT == 0 && fakecuda_holds(space, n)) ? SUCCESS : INVALID_VALUE; }
int cublasSgemm_v2(Handle *h, int trans_a, int trans_b, int m, int n, int k, const float *alpha, const void *a, int lda, const void *b, int ldb, const float *beta, void *c, int ldc) {
  if (*alpha != 1 || (*beta != 0 && *beta != 1)) return INVALID_VALUE;
  Uses uses;
  auto holds = [&](const void *matrix, size_t rows, size_t columns, size_t leading) {
    uses.push_back({matrix, 4 * (leading * (columns - 1) + rows)});
    return rows <= leading && fakecuda_holds(matrix, uses.back().second);
  };
  if (!holds(a, trans_a ? k : m, trans_a ? m : k, lda) || !holds(b, trans_b ? n : k, trans_b ? k : n, ldb) || !holds(c, m, n, ldc)) return EXECUTION_FAILED;
  if (!h->used && cuMemAlloc(&h->used, 1)) return ALLOC_FAILED;
  bool adds = *beta == 1;
  auto *work = new std::function<void()>([=] {
    auto *pa = (const float *)fakecuda_shadow(a, 4), *pb = (const float *)fakecuda_shadow(b, 4);
    auto *pc = (float *)fakecuda_shadow(c, 4);
    for (int j = 0; j < n; ++j) {
      float *column = pc + size_t(j) * ldc;
      if (!adds) std::fill(column, column + m, 0.0f);
      if (trans_a) {
        for (int i = 0; i < m; ++i) {
          float sum = 0;
          for (int l = 0; l < k; ++l) sum += pa[size_t(i) * lda + l] * (trans_b ? pb[size_t(l) * ldb + j] : pb[size_t(j) * ldb + l]);
          column[i] += sum;
        }
      } else {
        for (int l = 0; l < k; ++l) {
          float factor = trans_b ? pb[size_t(l) * ldb + j] : pb[size_t(j) * ldb + l];
          for (int i = 0; i < m; ++i) column[i] += pa[size_t(l) * lda + i] * factor;
        }
      }
    }
  });
  return fakecuda_enqueue(h->stream, work, uses) == CUDA_SUCCESS ? SUCCESS : EXECUTION_FAILED;
}
}
