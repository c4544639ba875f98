// Matrix products that cuBLASLt does not take.

template <class dtype, class outDtype> DEVICE void gemm(const gemmArgs<dtype, outDtype>& a) {
  EACH_ROW(r, a.batch * a.m) {
    const i64 row = r % a.m, batch = r / a.m;
    const dtype *x = a.a + batch * a.strideA, *y = a.b + batch * a.strideB;
    outDtype* c = a.c + batch * a.strideC + row * a.ldc;
    EACH_COLUMN(j, a.n) {
      float sum = 0.0f;
      for (i64 i = 0; i < a.k; i++) {
        sum = fmaf(get(x, a.transA ? i * a.lda + row : row * a.lda + i), get(y, a.transB ? j * a.ldb + i : i * a.ldb + j), sum);
      }
      const float value = a.alpha * sum;
      put(c, j, a.beta == 0.0f ? value : value + a.beta * get(c, j));
    }
  }
}
