// Reductions, argmax, and sums along rows. Sums are float64.

template <class dtype> DEVICE void maxAbs(const maxAbsArgs<dtype>& a) {
  if (blockIdx.x != 0) return;
  float most = 0.0f;
  EACH_COLUMN(i, a.n) most = Max()(most, fabsf(get(a.src, i)));
  most = overBlock(most, Max());
  if (threadIdx.x == 0) *a.dst = most;
}

DEVICE double startOf(ReduceOp op) {
  const double infinity = floatOf(0x7f800000);
  return op == ReduceOp::max ? -infinity : op == ReduceOp::min ? infinity : 0.0;
}
DEVICE double joined(ReduceOp op, double x, double y) {
  return op == ReduceOp::max ? Max()(x, y) : op == ReduceOp::min ? Min()(x, y) : x + y;
}
struct Join {
  ReduceOp op;
  DEVICE_METHOD double operator()(double x, double y) const { return joined(op, x, y); }
};
template <class dtype> DEVICE void reduce(const reduceArgs<dtype>& a) {
  if (a.inner == 1) {
    EACH_ROW(o, a.outer) {
      double value = startOf(a.op);
      EACH_COLUMN(i, a.n) value = joined(a.op, value, get(a.src, o * a.n + i));
      value = overBlock(value, Join{a.op});
      if (threadIdx.x == 0) put(a.dst, o, (float)(a.op == ReduceOp::mean ? value / (double)a.n : value));
    }
    return;
  }
  EACH(i, a.outer * a.inner) {
    const dtype* column = a.src + i / a.inner * a.n * a.inner + i % a.inner;
    double value = startOf(a.op);
    for (i64 j = 0; j < a.n; j++) value = joined(a.op, value, get(column, j * a.inner));
    put(a.dst, i, (float)(a.op == ReduceOp::mean ? value / (double)a.n : value));
  }
}

template <class dtype> DEVICE void argmax(const argmaxArgs<dtype>& a) {
  EACH_ROW(r, a.rows) {
    const dtype* row = a.src + r * a.cols;
    float best = -floatOf(0x7f800000);
    EACH_COLUMN(j, a.cols) best = Max()(best, get(row, j));
    best = overBlock(best, Max());
    i64 place = a.cols;
    EACH_COLUMN(j, a.cols) {
      const float x = get(row, j);
      if (place == a.cols && (x == best || x != x)) place = j;
    }
    place = overBlock(place, Min());
    if (threadIdx.x == 0) a.dst[r] = place == a.cols ? 0 : (int)place;
  }
}

template <class dtype> DEVICE void cumsum(const cumsumArgs<dtype>& a) {
  EACH(r, a.rows) {
    double sum = 0.0;
    for (i64 j = 0; j < a.cols; j++) {
      const i64 at = r * a.cols + (a.reverse ? a.cols - 1 - j : j);
      sum += get(a.src, at);
      put(a.dst, at, (float)sum);
    }
  }
}
