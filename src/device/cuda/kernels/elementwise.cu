// Elements each on its own: filling, converting, functions of one value, sums and products in place, gated units.

template <class T> DEVICE T valueOf(double value, T) { return (T)value; }
DEVICE bfloat16 valueOf(double value, bfloat16 type) { return narrowed((float)value, type); }
DEVICE float16 valueOf(double value, float16 type) { return narrowed((float)value, type); }
template <class dtype> DEVICE void fill(const fillArgs<dtype>& a) {
  const dtype value = valueOf(a.value, dtype());
  EACH(i, a.n) a.dst[i] = value;
}

DEVICE double numberOf(float x) { return x; }
DEVICE double numberOf(bfloat16 x) { return widened(x); }
DEVICE double numberOf(float16 x) { return widened(x); }
DEVICE double numberOf(int x) { return x; }
DEVICE double numberOf(u8 x) { return x; }
/** Towards zero; beyond a range its ends; not a number gives 0. */
DEVICE double truncated(double x, double low, double high) { return x != x ? 0.0 : x < low ? low : x > high ? high : x; }
DEVICE float converted(double x, float) { return (float)x; }
DEVICE bfloat16 converted(double x, bfloat16 type) { return narrowed((float)x, type); }
DEVICE float16 converted(double x, float16 type) { return narrowed((float)x, type); }
DEVICE int converted(double x, int) { return (int)truncated(x, -2147483648.0, 2147483647.0); }
DEVICE u8 converted(double x, u8) { return (u8)converted(x, int()); } // the low byte, as in PyTorch
template <class dstDtype, class srcDtype> DEVICE dstDtype castOf(srcDtype x, dstDtype type) { return converted(numberOf(x), type); }
template <class T> DEVICE T castOf(T x, T) { return x; }
template <class dstDtype, class srcDtype> DEVICE void cast(const castArgs<dstDtype, srcDtype>& a) {
  EACH(i, a.n) a.dst[i] = castOf(a.src[i], dstDtype());
}

DEVICE float normalCdf(float x) { return (float)(0.5 * erfc(-0.70710678118654752 * (double)x)); }
DEVICE float normalDensity(float x) { return 0.3989423f * expf(-0.5f * x * x); }
DEVICE float geluInner(float x) { return tanhf(0.7978846f * (x + 0.044715f * x * x * x)); }
DEVICE float softplusOf(double x) { return (float)((x > 0 ? x : 0.0) + log1p(exp(-fabs(x)))) + (x != x ? (float)x : 0.0f); }

DEVICE float unaryOf(UnaryOp op, float x, float p0, float p1) {
  switch (op) {
    case UnaryOp::neg: return -x;
    case UnaryOp::exp: return expf(x);
    case UnaryOp::log: return (float)log((double)x);
    case UnaryOp::sqrt: return sqrtf(x);
    case UnaryOp::rsqrt: return 1.0f / sqrtf(x);
    case UnaryOp::tanh: return tanhf(x);
    case UnaryOp::sigmoid: return sigmoid(x);
    case UnaryOp::silu: return silu(x);
    case UnaryOp::gelu: return x * normalCdf(x);
    case UnaryOp::geluTanh: return 0.5f * x * (1.0f + geluInner(x));
    case UnaryOp::relu: return x < 0.0f ? 0.0f : x;
    case UnaryOp::square: return x * x;
    case UnaryOp::abs: return fabsf(x);
    case UnaryOp::reciprocal: return 1.0f / x;
    case UnaryOp::sin: return (float)sin((double)x);
    case UnaryOp::cos: return (float)cos((double)x);
    case UnaryOp::addScalar: return x + p0;
    case UnaryOp::mulScalar: return x * p0;
    case UnaryOp::clamp: x = x < p0 ? p0 : x; return x > p1 ? p1 : x;
    case UnaryOp::powScalar: return (float)pow((double)x, (double)p0);
    default: return softplusOf(x);
  }
}
template <class dtype> DEVICE void unary(const unaryArgs<dtype>& a) {
  EACH(i, a.n) put(a.dst, i, unaryOf(a.op, get(a.src, i), a.p0, a.p1));
}

DEVICE float unarySlope(UnaryOp op, float d, float x, float p0, float p1) {
  switch (op) {
    case UnaryOp::neg: return -d;
    case UnaryOp::exp: return d * expf(x);
    case UnaryOp::log: return d / x;
    case UnaryOp::sqrt: return d * 0.5f / sqrtf(x);
    case UnaryOp::rsqrt: return d * -0.5f / (x * sqrtf(x));
    case UnaryOp::tanh: { float t = tanhf(x); return d * (1.0f - t * t); }
    case UnaryOp::sigmoid: { float s = sigmoid(x); return d * s * (1.0f - s); }
    case UnaryOp::silu: { float s = sigmoid(x); return d * s * (1.0f + x * (1.0f - s)); }
    case UnaryOp::gelu: return d * (normalCdf(x) + x * normalDensity(x));
    case UnaryOp::geluTanh: {
      float t = geluInner(x), slope = 0.7978846f * (1.0f + 0.134145f * x * x);
      return d * (0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * slope);
    }
    case UnaryOp::relu: return x <= 0.0f ? 0.0f : d;
    case UnaryOp::square: return d * (x + x);
    case UnaryOp::abs: return x > 0.0f ? d : x < 0.0f ? -d : 0.0f * d;
    case UnaryOp::reciprocal: return -(d / (x * x));
    case UnaryOp::sin: return d * (float)cos((double)x);
    case UnaryOp::cos: return -(d * (float)sin((double)x));
    case UnaryOp::addScalar: return d;
    case UnaryOp::mulScalar: return d * p0;
    // An infinite limit is none: infinities lie within it.
    case UnaryOp::clamp: {
      const float infinity = floatOf(0x7f800000);
      return (p0 == -infinity ? p0 <= x : p0 < x) && (p1 == infinity ? x <= p1 : x < p1) ? d : 0.0f;
    }
    // The power 0 is constant, at 0 too.
    case UnaryOp::powScalar: return p0 == 0.0f ? 0.0f : d * (p0 * (float)pow((double)x, (double)(p0 - 1.0f)));
    default: return d * sigmoid(x);
  }
}
template <class dtype> DEVICE void unaryBackward(const unaryBackwardArgs<dtype>& a) {
  EACH(i, a.n) put(a.dx, i, unarySlope(a.op, get(a.dy, i), get(a.x, i), a.p0, a.p1));
}

template <class dstDtype, class srcDtype> DEVICE void accumulate(const accumulateArgs<dstDtype, srcDtype>& a) {
  EACH(i, a.n) put(a.dst, i, get(a.dst, i) + get(a.src, i));
}
template <class dtype> DEVICE void scale(const scaleArgs<dtype>& a) {
  EACH(i, a.n) put(a.dst, i, get(a.src, i) * a.factor);
}
template <class dtype> DEVICE void scaleBy(const scaleByArgs<dtype>& a) {
  const float factor = *a.factor;
  if (factor == 1.0f && a.dst == a.src) return;
  EACH(i, a.n) put(a.dst, i, get(a.src, i) * factor);
}

template <class dtype> DEVICE void swiglu(const swigluArgs<dtype>& a) {
  EACH(i, a.n) {
    const float g = get(a.gate, i);
    put(a.y, i, silu(g) * get(a.up, i));
  }
}
template <class dtype> DEVICE void swigluBackward(const swigluBackwardArgs<dtype>& a) {
  EACH(i, a.n) {
    const float g = get(a.gate, i), u = get(a.up, i), d = get(a.dy, i), s = sigmoid(g);
    put(a.dgate, i, d * u * s * (1.0f + g * (1.0f - s)));
    put(a.dup, i, d * silu(g));
  }
}
