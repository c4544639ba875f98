// A test double of cuBLASLt: products by plain loops, enqueued on a stream of the double of the CUDA runtime.
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "sixteen_bits.hpp"
#include "twin.hpp"
#define API extern "C" __attribute__((visibility("default")))

typedef uint64_t u64;
struct Layout { int type; u64 rows, cols; int64_t ld; int batch; int64_t stride; };
struct Desc { int transA, transB; };

static float load(const void *p, int type, int64_t i) {
  return type == 0 ? ((const float *)p)[i] : widen(((const uint16_t *)p)[i], type == 2);
}
static void store(void *p, int type, int64_t i, float x) {
  if (type == 0) ((float *)p)[i] = x;
  else ((uint16_t *)p)[i] = narrow(x, type == 2);
}
static int bytesOf(int type) { return type == 0 ? 4 : 2; }
static const char *at(const void *p, const Layout &l, int b) { return (const char *)p + b * l.stride * bytesOf(l.type); }

API const char *cublasLtGetStatusName(int s) { return s == 0 ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_INVALID_VALUE"; }
API const char *cublasLtGetStatusString(int) { return "said the test double"; }
API u64 cublasLtGetVersion() { return 130000; }
API u64 cublasLtGetCudartVersion() { return 13000; }
API int cublasLtCreate(void **h) { return *h = (void *)8, 0; }
API int cublasLtDestroy(void *) { return 0; }
API int cublasLtMatmulDescCreate(void **d, int, int) { return *d = new Desc{0, 0}, 0; }
API int cublasLtMatmulDescSetAttribute(void *d, int which, const void *value, u64) {
  if (which == 3) ((Desc *)d)->transA = *(const int *)value;
  else if (which == 4) ((Desc *)d)->transB = *(const int *)value;
  else return 7;
  return 0;
}
API int cublasLtMatmulDescDestroy(void *d) { return delete (Desc *)d, 0; }
API int cublasLtMatrixLayoutCreate(void **l, int type, u64 rows, u64 cols, int64_t ld) {
  return *l = new Layout{type, rows, cols, ld, 1, 0}, 0;
}
API int cublasLtMatrixLayoutSetAttribute(void *l, int which, const void *value, u64) {
  if (which == 5) ((Layout *)l)->batch = *(const int *)value;
  else if (which == 6) ((Layout *)l)->stride = *(const int64_t *)value;
  else return 7;
  return 0;
}
API int cublasLtMatrixLayoutDestroy(void *l) { return delete (Layout *)l, 0; }
API int cublasLtMatmulPreferenceCreate(void **p) { return *p = (void *)8, 0; }
API int cublasLtMatmulPreferenceSetAttribute(void *, int, const void *, u64) { return 0; }
API int cublasLtMatmulPreferenceDestroy(void *) { return 0; }
API int cublasLtMatmulAlgoGetHeuristic(void *, void *, void *, void *, void *, void *, void *, int, char *results, int *n) {
  memset(results, 0, 96);
  return *n = 1, 0;
}
API int cublasLtMatmul(void *, void *desc, const float *alpha_, const void *a, void *la, const void *b, void *lb,
                       const float *beta_, const void *c, void *, void *d, void *ld_, const void *, void *, u64, void *stream) {
  Desc t = *(Desc *)desc;
  Layout A = *(Layout *)la, B = *(Layout *)lb, D = *(Layout *)ld_;
  float alpha = *alpha_, beta = *beta_;
  u64 k = t.transA ? A.rows : A.cols;
  if ((t.transB ? B.cols : B.rows) != k || (t.transA ? A.cols : A.rows) != D.rows || k == 0 || D.rows == 0 || D.cols == 0) return 7;
  if (A.ld < (int64_t)A.rows || B.ld < (int64_t)B.rows || D.ld < (int64_t)D.rows) return 7;
  std::function<void()> run = [=] {
    auto touch = [](const Layout &l, const void *p, bool writes) {
      for (int i = 0; i < l.batch; i++)
        for (u64 col = 0; col < l.cols; col++)
          twinTouch(at(p, l, i) + col * l.ld * bytesOf(l.type), l.rows * bytesOf(l.type), writes);
    };
    touch(A, a, false);
    touch(B, b, false);
    if (beta != 0) touch(D, c, false);
    touch(D, d, true);
    for (int i = 0; i < D.batch; i++) {
      const void *pa = at(a, A, i), *pb = at(b, B, i), *pc = at(c, D, i);
      for (u64 col = 0; col < D.cols; col++)
        for (u64 row = 0; row < D.rows; row++) {
          float sum = 0;
          for (u64 j = 0; j < k; j++)
            sum += load(pa, A.type, t.transA ? j + row * A.ld : row + j * A.ld) * load(pb, B.type, t.transB ? col + j * B.ld : j + col * B.ld);
          int64_t place = row + col * D.ld;
          store((void *)at(d, D, i), D.type, place, alpha * sum + (beta != 0 ? beta * load(pc, D.type, place) : 0));
        }
    }
  };
  twinEnqueue(stream, "product", &run);
  return 0;
}
