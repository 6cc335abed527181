// The slice of cuDNN 9's legacy convolution API that Pebbler calls.
#include "convolution.h"

namespace {
int ask(Pass pass, const Tensor *x, const Tensor *w, const Tensor *y, const Convolution *c, int algorithm, size_t *n) {
  if (algorithm < 0 || algorithm >= ALGORITHMS[pass]) return BAD_PARAM;
  size_t bytes = workspace(pass, algorithm, *x, *w, *y, *c);
  if (bytes == NONE) return NOT_SUPPORTED;
  *n = bytes;
  return SUCCESS;
}

// cudnnConvolution*AlgoPerf_t: the three have the same members.
struct Performance { int algorithm, status; float time; size_t memory; int determinism, math, reserved[3]; };

// Every algorithm comes twice, once for each of two types of math, so that there are more results than algorithms.
int suggest(Pass pass, const Tensor *x, const Tensor *w, const Tensor *y, const Convolution *c, int asked, int *returned, Performance *found) {
  std::vector<Performance> all;
  for (int algorithm = 0; algorithm < ALGORITHMS[pass]; ++algorithm) {
    size_t bytes = 0;
    int status = ask(pass, x, w, y, c, algorithm, &bytes);
    for (int math : {int(TENSOR_OP_MATH), c->math}) all.push_back({algorithm, status, -1.0f, bytes, is_deterministic(pass, algorithm), math, {}});
  }
  std::stable_partition(all.begin(), all.end(), [](const Performance &p) { return p.status == SUCCESS; });
  *returned = std::min(asked, int(all.size()));
  std::copy_n(all.begin(), *returned, found);
  return SUCCESS;
}
}  // namespace

extern "C" {
size_t cudnnGetVersion() { return 91300; }
const char *cudnnGetErrorString(int status) {
  switch (status) {
    case SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case MISALIGNED_POINTER: return "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER";
    case NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    default: return "CUDNN_STATUS_EXECUTION_FAILED";
  }
}
int cudnnCreate(Handle **h) { *h = new Handle; return SUCCESS; }
int cudnnDestroy(Handle *h) { delete h; return SUCCESS; }
int cudnnSetStream(Handle *h, CUstream s) { h->stream = s; return SUCCESS; }
int cudnnCreateTensorDescriptor(Tensor **t) { *t = new Tensor; return SUCCESS; }
int cudnnDestroyTensorDescriptor(Tensor *t) { delete t; return SUCCESS; }
int cudnnSetTensor4dDescriptor(Tensor *t, int format, int type, int n, int c, int h, int w) { *t = {n, c, h, w}; return format || type ? NOT_SUPPORTED : SUCCESS; }
int cudnnCreateFilterDescriptor(Tensor **t) { *t = new Tensor; return SUCCESS; }
int cudnnDestroyFilterDescriptor(Tensor *t) { delete t; return SUCCESS; }
int cudnnSetFilter4dDescriptor(Tensor *t, int type, int format, int k, int c, int h, int w) { *t = {k, c, h, w}; return format || type ? NOT_SUPPORTED : SUCCESS; }
int cudnnCreateConvolutionDescriptor(Convolution **c) { *c = new Convolution; return SUCCESS; }
int cudnnDestroyConvolutionDescriptor(Convolution *c) { delete c; return SUCCESS; }
int cudnnSetConvolution2dDescriptor(Convolution *c, int ph, int pw, int sh, int sw, int dh, int dw, int mode, int type) {
  *c = {ph, pw, sh, sw, dh, dw};
  return mode == 1 && type == 0 ? SUCCESS : NOT_SUPPORTED;  // cross-correlation, single precision
}
int cudnnSetConvolutionMathType(Convolution *c, int math) {
  if (math < DEFAULT_MATH || math > FMA_MATH) return BAD_PARAM;
  c->math = math;
  return SUCCESS;
}
int cudnnSetConvolutionGroupCount(Convolution *c, int groups) { c->groups = groups; return SUCCESS; }
int cudnnGetConvolutionForwardWorkspaceSize(Handle *, Tensor *x, Tensor *w, Convolution *c, Tensor *y, int a, size_t *n) { return ask(FORWARD, x, w, y, c, a, n); }
int cudnnGetConvolutionBackwardDataWorkspaceSize(Handle *, Tensor *w, Tensor *dy, Convolution *c, Tensor *dx, int a, size_t *n) { return ask(BACKWARD_DATA, dx, w, dy, c, a, n); }
int cudnnGetConvolutionBackwardFilterWorkspaceSize(Handle *, Tensor *x, Tensor *dy, Convolution *c, Tensor *dw, int a, size_t *n) { return ask(BACKWARD_FILTER, x, dw, dy, c, a, n); }
int cudnnGetConvolutionForwardAlgorithm_v7(Handle *, Tensor *x, Tensor *w, Convolution *c, Tensor *y, int n, int *m, Performance *p) { return suggest(FORWARD, x, w, y, c, n, m, p); }
int cudnnGetConvolutionBackwardDataAlgorithm_v7(Handle *, Tensor *w, Tensor *dy, Convolution *c, Tensor *dx, int n, int *m, Performance *p) { return suggest(BACKWARD_DATA, dx, w, dy, c, n, m, p); }
int cudnnGetConvolutionBackwardFilterAlgorithm_v7(Handle *, Tensor *x, Tensor *dy, Convolution *c, Tensor *dw, int n, int *m, Performance *p) { return suggest(BACKWARD_FILTER, x, dw, dy, c, n, m, p); }
int cudnnConvolutionForward(Handle *h, const float *alpha, Tensor *x, const void *px, Tensor *w, const void *pw, Convolution *c, int a, void *space, size_t n, const float *beta, Tensor *y, void *py) {
  return convolve(FORWARD, h, alpha, *x, px, *w, pw, *y, py, *c, a, space, n, beta);
}
int cudnnConvolutionBackwardData(Handle *h, const float *alpha, Tensor *w, const void *pw, Tensor *dy, const void *pdy, Convolution *c, int a, void *space, size_t n, const float *beta, Tensor *dx, void *pdx) {
  return convolve(BACKWARD_DATA, h, alpha, *dx, pdx, *w, pw, *dy, pdy, *c, a, space, n, beta);
}
int cudnnConvolutionBackwardFilter(Handle *h, const float *alpha, Tensor *x, const void *px, Tensor *dy, const void *pdy, Convolution *c, int a, void *space, size_t n, const float *beta, Tensor *dw, void *pdw) {
  return convolve(BACKWARD_FILTER, h, alpha, *x, px, *dw, pdw, *dy, pdy, *c, a, space, n, beta);
}
}
