// What the fake driver offers to the fake libraries.
#pragma once
#include <cuda.h>

#include <functional>
#include <utility>
#include <vector>

// Ranges of device addresses that a job works on: from where, and how many bytes.
using Uses = std::vector<std::pair<const void *, size_t>>;

extern "C" {
// Where a job, on a stream's thread, finds what lies at a device address. Another alignment than asked for fails the context.
void *fakecuda_shadow(const void *, size_t alignment);
// Whether a range is mapped, and can be read and written.
bool fakecuda_holds(const void *, size_t);
// Put work of a library on a stream; it counts as a launch.
CUresult fakecuda_enqueue(CUstream, std::function<void()> *, const Uses &);
// Whether a launch of this algorithm is to be refused, although its workspace was told.
bool fakecuda_refuses(int pass, int algorithm);
// A number from the seed, another one each time: for work whose order is left to chance.
size_t fakecuda_turn(void);
}
