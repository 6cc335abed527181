// The slice of cuBLAS that Pebbler calls, on the fake driver's memory: single-precision products, column-major.
//
// The first product of a handle allocates, as first uses of the real one may: it cannot be part of a capture.
#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <functional>

extern "C" void *fakecuda_shadow(const void *);
extern "C" bool fakecuda_holds(const void *, size_t);
extern "C" CUresult fakecuda_enqueue(CUstream, std::function<void()> *);

namespace {
enum Status { SUCCESS = 0, ALLOC_FAILED = 3, INVALID_VALUE = 7, EXECUTION_FAILED = 13 };
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
int cublasSetMathMode(Handle *, int) { return SUCCESS; }
int cublasSetWorkspace_v2(Handle *, void *space, size_t n) { return n == 0 || fakecuda_holds(space, n) ? SUCCESS : INVALID_VALUE; }
int cublasSgemm_v2(Handle *h, int trans_a, int trans_b, int m, int n, int k, const float *alpha, const void *a, int lda, const void *b, int ldb, const float *beta, void *c, int ldc) {
  if (*alpha != 1 || (*beta != 0 && *beta != 1)) return INVALID_VALUE;
  auto holds = [](const void *matrix, size_t rows, size_t columns, size_t leading) {
    return rows <= leading && fakecuda_holds(matrix, 4 * (leading * (columns - 1) + rows));
  };
  if (!holds(a, trans_a ? k : m, trans_a ? m : k, lda) || !holds(b, trans_b ? n : k, trans_b ? k : n, ldb) || !holds(c, m, n, ldc)) return EXECUTION_FAILED;
  if (!h->used && cuMemAlloc(&h->used, 1)) return ALLOC_FAILED;
  bool adds = *beta == 1;
  auto *work = new std::function<void()>([=] {
    auto *pa = (const float *)fakecuda_shadow(a), *pb = (const float *)fakecuda_shadow(b);
    auto *pc = (float *)fakecuda_shadow(c);
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
  return fakecuda_enqueue(h->stream, work) == CUDA_SUCCESS ? SUCCESS : EXECUTION_FAILED;
}
}
