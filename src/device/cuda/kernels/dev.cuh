// What all kernels share: types by the names of the kernel table, loads and stores, walks, reductions of a block,
// faults. Kernels include nothing else, and NVIDIA's headers not at all. What is the hardware's own (conversions,
// bits, shared memory) has a device form here, and a host form for g++, by which tests run the same texts.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

typedef float float32;
typedef double float64;
typedef int int32;
typedef u8 uint8;
typedef i64 int64;
struct bfloat16 { u16 bits; };
struct float16 { u16 bits; };

#ifdef __CUDACC__
#define DEVICE static __device__ __forceinline__
#define DEVICE_METHOD __device__ __forceinline__
#define DEVICE_CALL static __device__ __noinline__ // a function with many callers, compiled once
#define ENTRY(threads) extern "C" __global__ void __launch_bounds__(threads)
#define SHARED(T, name, count) __shared__ T name[count]
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) u8 name[] // as many bytes as the launch says
DEVICE u32 bitsOf(float x) { return __float_as_uint(x); }
DEVICE float floatOf(u32 bits) { return __uint_as_float(bits); }
DEVICE u64 bitsOf(double x) { return (u64)__double_as_longlong(x); }
DEVICE double doubleOf(u64 bits) { return __longlong_as_double((i64)bits); }
DEVICE float widened(float16 h) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h.bits));
  return x;
}
DEVICE float16 narrowed(float x, float16) {
  float16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(x));
  return h;
}
DEVICE u32 pairOf(float low, float high, bfloat16) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
DEVICE u32 pairOf(float low, float high, float16) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
DEVICE float powerOf2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#define MULTIPLY_FRAGMENTS(type) \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 " \
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
DEVICE void multiplyFragments(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, bfloat16) { MULTIPLY_FRAGMENTS("bf16"); }
DEVICE void multiplyFragments(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, float16) { MULTIPLY_FRAGMENTS("f16"); }
DEVICE u32 sharedAddress(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEVICE void loadMatrices(u32 (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(sharedAddress(row)) : "memory");
}
DEVICE void loadTransposed(u32 (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(sharedAddress(row)) : "memory");
}
DEVICE void copyLater16(void* to, const void* from, bool isThere) {
  const int bytes = isThere ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(sharedAddress(to)), "l"(from), "r"(bytes) : "memory");
}
DEVICE void copyLater4(void* to, const void* from, bool isThere) {
  const int bytes = isThere ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(sharedAddress(to)), "l"(from), "r"(bytes) : "memory");
}
DEVICE void closeCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEVICE void awaitCopies() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
#else
#define DEVICE static inline
#define DEVICE_METHOD inline
#define DEVICE_CALL static
#define ENTRY(threads) extern "C" void
// Shared memory of a block belongs to the place that declares it.
#define SHARED(T, name, count) \
  static const char name##Place = 0; \
  T* const name = (T*)sharedMemory(&name##Place, sizeof(T) * (count))
DEVICE u32 bitsOf(float x) { u32 bits; __builtin_memcpy(&bits, &x, 4); return bits; }
DEVICE float floatOf(u32 bits) { float x; __builtin_memcpy(&x, &bits, 4); return x; }
DEVICE u64 bitsOf(double x) { u64 bits; __builtin_memcpy(&bits, &x, 8); return bits; }
DEVICE double doubleOf(u64 bits) { double x; __builtin_memcpy(&x, &bits, 8); return x; }
DEVICE float widened(float16 h) { _Float16 x; __builtin_memcpy(&x, &h, 2); return (float)x; }
DEVICE float16 narrowed(float x, float16) {
  _Float16 y = (_Float16)x;
  float16 h;
  __builtin_memcpy(&h, &y, 2);
  return h;
}
#define DYNAMIC_SHARED(name) u8* const name = (u8*)twinDynamicShared()
template <class T> DEVICE u32 pairOf(float low, float high, T type);
DEVICE float powerOf2(float x) { return exp2f(x); }
DEVICE void multiplyFragments(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, bfloat16) { twinMultiply(c, a, b0, b1, 1); }
DEVICE void multiplyFragments(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, float16) { twinMultiply(c, a, b0, b1, 0); }
DEVICE void loadMatrices(u32 (&to)[4], const void* row) { twinLoadMatrices(to, row, 0); }
DEVICE void loadTransposed(u32 (&to)[4], const void* row) { twinLoadMatrices(to, row, 1); }
DEVICE void copyLater16(void* to, const void* from, bool isThere) { twinCopyLater(to, from, 16, isThere); }
DEVICE void copyLater4(void* to, const void* from, bool isThere) { twinCopyLater(to, from, 4, isThere); }
DEVICE void closeCopies() { twinCloseCopies(); }
template <int N> DEVICE void awaitCopies() { twinAwaitCopies(N); }
#endif
// A warp's products: `c` [16, 8] += `a` [16, 16] * `b` [16, 8], float32 sums of 2-byte floats. With `g` = lane / 4
// and `t` = lane % 4 a lane holds of `c` rows g (0, 1) and g + 8 (2, 3), columns 2t and 2t + 1; of `a` pairs (g, 2t),
// (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8); of `b` rows 2t, 2t + 1 (`b0`) and those + 8 (`b1`) of column g.
// `loadMatrices` gives four matrices [8, 8] of shared memory, whose rows lanes 0 … 31 point to, one after the other:
// of each a lane gets the pair (g, 2t), transposed elements (2t, g) and (2t + 1, g).
// `copyLater` copies from device to shared memory (zeros unless it `isThere`), which is there when its thread has
// waited: `awaitCopies<N>` waits for all but the last N groups of copies, each ended by `closeCopies`.

// Values: widened on load, rounded once, to nearest even, on store.
DEVICE float widened(float x) { return x; }
DEVICE float widened(bfloat16 b) { return floatOf((u32)b.bits << 16); }
DEVICE float narrowed(float x, float) { return x; }
DEVICE bfloat16 narrowed(float x, bfloat16) {
  u32 bits = bitsOf(x);
  if (x != x) return {(u16)((bits >> 16) | 0x40)};
  return {(u16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
#ifndef __CUDACC__
template <class T> DEVICE u32 pairOf(float low, float high, T type) {
  return (u32)narrowed(low, type).bits | (u32)narrowed(high, type).bits << 16;
}
#endif
template <class T> DEVICE float get(const T* p, i64 i) { return widened(p[i]); }
template <class T> DEVICE void put(T* p, i64 i, float x) { p[i] = narrowed(x, T()); }
/** The value after a store and a load. */
template <class T> DEVICE float rounded(float x) { return widened(narrowed(x, T())); }

// Arguments: sizes of a shape, addresses of a list.
struct Shape { i64 ndim; i64 size[8]; };
struct Strides { i64 of[8]; };
template <class T> struct List { i64 count; T* at[64]; };

// Work of a grid: each element by one thread, or each row by one block; any size of grid does all of it.
#define EACH(i, n) \
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < (i64)(n); i += (i64)gridDim.x * blockDim.x)
#define EACH_ROW(r, rows) for (i64 r = blockIdx.x; r < (i64)(rows); r += gridDim.x)
/** Elements of a row, by the threads of its block. */
#define EACH_COLUMN(j, cols) for (i64 j = threadIdx.x; j < (i64)(cols); j += blockDim.x)

DEVICE i64 elementsOf(const Shape& shape) {
  i64 n = 1;
  for (int d = 0; d < shape.ndim; d++) n *= shape.size[d];
  return n;
}

/** Index of element `i` of a shape. */
DEVICE i64 placeOf(const Shape& shape, const Strides& strides, i64 i) {
  i64 place = 0;
  for (int d = (int)shape.ndim - 1; d >= 0; d--) {
    place += i % shape.size[d] * strides.of[d];
    i /= shape.size[d];
  }
  return place;
}

// Reductions of a block, in an order that depends on its size only; every thread gets the result. NaN wins.
struct Sum { template <class T> DEVICE_METHOD T operator()(T a, T b) const { return a + b; } };
struct Max { template <class T> DEVICE_METHOD T operator()(T a, T b) const { return a > b || a != a ? a : b; } };
struct Min { template <class T> DEVICE_METHOD T operator()(T a, T b) const { return a < b || a != a ? a : b; } };
template <class T, class F> DEVICE T overBlock(T value, F f) {
  SHARED(T, parts, 32);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  for (int step = 16; step > 0; step >>= 1) value = f(value, __shfl_xor_sync(~0u, value, step));
  __syncthreads(); // what was reduced before has been read
  if (lane == 0) parts[warp] = value;
  __syncthreads();
  value = parts[0];
  for (int i = 1; i < warps; i++) value = f(value, parts[i]);
  return value;
}

/** The device's status record; see `src/device/status.ts`. */
struct Status {
  u32 kind, unused;
  double place, limit, value;
};
enum Fault { FAULT_ID = 1, FAULT_LABEL, FAULT_POSITION, FAULT_NORM, FAULT_INDEX };
/** Notes a fault unless there is one. Of several of one call any may come first. */
DEVICE void note(Status* status, Fault kind, i64 place, double value, i64 limit) {
  if (atomicCAS(&status->kind, 0u, (u32)kind) != 0) return;
  status->place = (double)place;
  status->limit = (double)limit;
  status->value = value;
}

// Functions of one value.
DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
/** `x` times its sigmoid, by one division: a product with the sigmoid would round once more. */
DEVICE float silu(float x) { return x / (1.0f + expf(-x)); }
/** Not a number and infinity tell themselves. */
DEVICE bool isFinite(double x) { return x - x == 0.0; }

/** Four words of Philox 4x32-10. */
struct Words { u32 word[4]; };
DEVICE Words philox(u32 c0, u32 c1, u32 c2, u32 c3, u64 key) {
  u32 k0 = (u32)key, k1 = (u32)(key >> 32);
  for (int round = 0; round < 10; round++) {
    const u64 p0 = 0xd2511f53ull * c0, p1 = 0xcd9e8d57ull * c2;
    c0 = (u32)(p1 >> 32) ^ c1 ^ k0, c1 = (u32)p1;
    c2 = (u32)(p0 >> 32) ^ c3 ^ k1, c3 = (u32)p0;
    k0 += 0x9e3779b9, k1 += 0xbb67ae85;
  }
  return {{c0, c1, c2, c3}};
}
/** The number of a batch's first sample: its place after one that lies on the card, which a graph reads anew each time. */
struct Sample {
  double place;
  const double* first;
  DEVICE_METHOD operator double() const { return *first + place; }
};
/**
 * Words of four elements of a sample's matrix, whatever batch the sample lies in: see `Row` in `wasm/src/philox.rs`.
 */
DEVICE Words wordsOf(double key, double sample, i64 entry, i64 plane, i64 row, i64 col) {
  const u64 own = (u64)sample + (u64)entry;
  return philox((u32)(col / 4), (u32)row, (u32)own, (u32)(own >> 32) | (u32)plane << 21, (u64)key);
}
DEVICE u32 wordOf(double key, double sample, i64 entry, i64 plane, i64 row, i64 col) {
  const Words words = wordsOf(key, sample, entry, plane, row, col);
  const u32 low = col & 1 ? words.word[1] : words.word[0], high = col & 1 ? words.word[3] : words.word[2];
  return col & 2 ? high : low;
}
/** The factor of dropout on an element, from its random word. */
template <class A> DEVICE float dropoutFactorOf(const A& a, u32 word) {
  return word < (u64)(a.p * 4294967296.0) ? 0.0f : (float)(1.0 / (1.0 - a.p));
}
/** The factor of dropout on an element. */
template <class A> DEVICE float dropoutFactor(const A& a, i64 entry, i64 plane, i64 row, i64 col) {
  return a.p == 0.0 ? 1.0f : dropoutFactorOf(a, wordOf(a.key, a.sample, entry, plane, row, col));
}
