// Arrays with strides, and elements by index.

template <class dtype> DEVICE void copyStrided(const copyStridedArgs<dtype>& a) {
  EACH(i, elementsOf(a.shape)) a.dst[placeOf(a.shape, a.dstStrides, i)] = a.src[placeOf(a.shape, a.srcStrides, i)];
}

DEVICE float binaryOf(BinaryOp op, float x, float y) {
  switch (op) {
    case BinaryOp::add: return x + y;
    case BinaryOp::sub: return x - y;
    case BinaryOp::mul: return x * y;
    case BinaryOp::div: return x / y;
    case BinaryOp::maximum: return Max()(x, y);
    case BinaryOp::minimum: return Min()(x, y);
    default: return (float)pow((double)x, (double)y);
  }
}
template <class dtype> DEVICE void binary(const binaryArgs<dtype>& a) {
  EACH(i, elementsOf(a.shape)) {
    const float x = get(a.a, placeOf(a.shape, a.aStrides, i)), y = get(a.b, placeOf(a.shape, a.bStrides, i));
    put(a.dst, i, binaryOf(a.op, x, y));
  }
}

DEVICE double comparable(float x) { return x; }
DEVICE double comparable(bfloat16 x) { return widened(x); }
DEVICE double comparable(float16 x) { return widened(x); }
DEVICE double comparable(int x) { return x; }
DEVICE double comparable(u8 x) { return x; }
DEVICE bool holds(CompareOp op, double x, double y) {
  switch (op) {
    case CompareOp::eq: return x == y;
    case CompareOp::ne: return x != y;
    case CompareOp::lt: return x < y;
    case CompareOp::le: return x <= y;
    case CompareOp::gt: return x > y;
    case CompareOp::ge: return x >= y;
    case CompareOp::logicalAnd: return x != 0.0 && y != 0.0;
    default: return x != 0.0 || y != 0.0;
  }
}
template <class dtype> DEVICE void compare(const compareArgs<dtype>& a) {
  EACH(i, elementsOf(a.shape)) {
    const dtype x = a.a[placeOf(a.shape, a.aStrides, i)], y = a.b[placeOf(a.shape, a.bStrides, i)];
    a.dst[i] = holds(a.op, comparable(x), comparable(y));
  }
}

template <class dtype> DEVICE void select(const selectArgs<dtype>& a) {
  EACH(i, elementsOf(a.shape)) {
    const bool isFirst = a.condition[placeOf(a.shape, a.conditionStrides, i)] != 0;
    a.dst[i] = isFirst ? a.a[placeOf(a.shape, a.aStrides, i)] : a.b[placeOf(a.shape, a.bStrides, i)];
  }
}

template <class dtype> DEVICE void gather(const gatherArgs<dtype>& a) {
  EACH(i, a.outer * a.m * a.inner) {
    const i64 k = i % a.inner, j = i / a.inner % a.m, o = i / a.inner / a.m;
    const int at = a.index[o * a.strideOuter + j * a.stride + k * a.strideInner];
    if (at >= 0 && at < a.n) a.dst[i] = a.src[(o * a.n + at) * a.inner + k];
    else {
      a.dst[i] = dtype();
      if (k == 0 || a.strideInner != 0) note(a.status, FAULT_INDEX, i, at, a.n);
    }
  }
}

template <class dtype> DEVICE void scatterAdd(const scatterAddArgs<dtype>& a) {
  EACH(i, a.outer * a.inner) {
    const i64 k = i % a.inner, o = i / a.inner;
    for (i64 j = 0; j < a.m; j++) { // in the order of the source
      const int at = a.index[o * a.strideOuter + j * a.stride + k * a.strideInner];
      const i64 place = (o * a.m + j) * a.inner + k;
      if (at >= 0 && at < a.n) a.dst[(o * a.n + at) * a.inner + k] += get(a.src, place);
      else if (k == 0 || a.strideInner != 0) note(a.status, FAULT_INDEX, place, at, a.n);
    }
  }
}
