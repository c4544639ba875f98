// A test double of CUDA's C++ for kernels compiled by g++: one fibre a thread of a block. Included before a kernel's text;
// what it declares is defined in cudart.cpp, beside the double of the CUDA runtime.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>

struct dim3 { unsigned x, y, z; };
struct TwinThread { dim3 thread, block; };

extern "C" {
extern const dim3 *const twinBlockDim, *const twinGridDim;
const TwinThread *twinThread();
void twinBarrier(int line);
void twinSyncWarp(unsigned mask);
void twinShuffle(void *value, int bytes, int lane, unsigned mask);
void *sharedMemory(const void *place, size_t bytes);
void twinAtomic(void *p, int bytes);
void *twinDynamicShared();
void twinMultiply(float *c, const unsigned *a, unsigned b0, unsigned b1, int isBfloat16);
void twinLoadMatrices(unsigned *to, const void *row, int isTransposed);
void twinCopyLater(void *to, const void *from, int bytes, int isThere);
void twinCloseCopies();
void twinAwaitCopies(int most);
int twinAny(unsigned mask, int isSo);
}

#define threadIdx (twinThread()->thread)
#define blockIdx (twinThread()->block)
#define blockDim (*twinBlockDim)
#define gridDim (*twinGridDim)
#define __syncthreads() twinBarrier(__LINE__)
static inline void __syncwarp(unsigned mask = ~0u) { twinSyncWarp(mask); }
template <class T> static inline T __shfl_sync(unsigned mask, T value, int lane) {
  twinShuffle(&value, sizeof value, lane & 31, mask);
  return value;
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int step) {
  twinShuffle(&value, sizeof value, ((int)threadIdx.x & 31) ^ step, mask);
  return value;
}
static inline bool __any_sync(unsigned mask, bool isSo) { return twinAny(mask, isSo); }
#define UNTRACED __attribute__((no_sanitize("thread"), noinline))
template <class T> UNTRACED static T atomicAdd(T *p, T value) {
  twinAtomic(p, sizeof value);
  T old = *p;
  *p = old + value;
  return old;
}
template <class T> UNTRACED static T atomicCAS(T *p, T expected, T value) {
  twinAtomic(p, sizeof value);
  T old = *p;
  if (old == expected) *p = value;
  return old;
}
