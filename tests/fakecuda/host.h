// Put before a CUDA source by the stand-in for nvcc: the source's macros, for a host compiler. A kernel becomes a function
// that runs its body once a block; between two barriers, one thread after the other. Pointers among the arguments are
// device addresses and are replaced by where the fake driver keeps what lies there.
#pragma once
#include <math.h>
#include <stdint.h>

#include <type_traits>

extern "C" void *fakecuda_shadow(const void *, size_t);

struct Dimensions { unsigned x, y, z; };
static thread_local Dimensions gridDim, blockDim, blockIdx;

namespace fakecuda {
template <class T> T take(const char *&at) {
  at = (const char *)(((uintptr_t)at + alignof(T) - 1) / alignof(T) * alignof(T));
  T value = *(const T *)at;
  at += sizeof(T);
  if constexpr (std::is_pointer_v<T>) return (T)fakecuda_shadow((const void *)value, alignof(std::remove_pointer_t<T>));
  else return value;
}
template <class... A> void run(void (*kernel)(A...), const unsigned *d, const char *packed) {
  gridDim = {d[0], d[1], d[2]};
  blockDim = {d[3], d[4], d[5]};
  for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
        const char *at = packed;
        struct Call { Call(void (*f)(A...), A... a) { f(a...); } } call{kernel, take<A>(at)...};  // braces: in order
      }
}
}  // namespace fakecuda

#define KERNEL(NAME, ...) \
  static void NAME(__VA_ARGS__); \
  extern "C" void NAME##_on_host(const unsigned *d, const char *packed) { fakecuda::run(NAME, d, packed); } \
  static void NAME(__VA_ARGS__)
#define DEVICE static inline
#define SHARED static thread_local
#define EACH(I, N) \
  for (long I = (long)(N)*blockIdx.x / gridDim.x, end_##I = (long)(N) * (blockIdx.x + 1) / gridDim.x; I < end_##I; ++I)
#define PHASE(T) for (int T = 0; T < (int)blockDim.x; ++T)
