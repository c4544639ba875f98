// Random numbers, by Philox 4x32-10: of a stream, or of samples. Polynomials as in `wasm/src/math.rs`.

/** A block of a stream, which gives four elements. */
DEVICE Words blockOf(u64 counter, double key) { return philox((u32)counter, (u32)(counter >> 32), 0, 0, (u64)key); }

DEVICE void uniform(const uniformArgs& a) {
  // Rounding may reach the upper end: then the float below it.
  const float width = a.high - a.low, last = a.low < a.high ? nextafterf(a.high, -floatOf(0x7f800000)) : a.low;
  EACH(i, a.n) {
    const u64 element = (u64)a.offset + (u64)i;
    const u32 word = blockOf(element / 4, a.key).word[element % 4];
    const float value = (float)(word >> 8) * (1.0f / 16777216.0f) * width + a.low;
    a.dst[i] = value < last ? value : last;
  }
}

DEVICE float logOfNormal(float x) {
  if (x < 1.17549435e-38f) x = 1.17549435e-38f;
  const int e = (int)(bitsOf(x) - 0x3f3504f3) >> 23;
  const float m = floatOf(bitsOf(x) - ((u32)e << 23)), n = (float)e;
  const float f = m - 1.0f, s = f / (2.0f + f), z = s * s;
  const float r = z * (((0.23610526f * z + 0.2853589f) * z + 0.40000355f) * z + 0.6666666f);
  const float halfSquare = 0.5f * f * f;
  const float low = s * (halfSquare + r) + n * -2.1219444e-4f;
  return n * 0.6933594f - ((halfSquare - low) - f);
}
/** The cosine, or with `isSine` the sine, of an angle in turns. */
DEVICE float ofTurns(float turns, bool isSine) {
  const float quarter = turns * 4.0f, q = rintf(quarter), r = quarter - q, z = r * r;
  const float sin = r * ((((0.00015820585f * z + -0.004681266f) * z + 0.07969258f) * z + -0.6459641f) * z + 1.5707964f);
  const float cos = (((0.0009036255f * z + -0.020860068f) * z + 0.2536692f) * z + -1.2337005f) * z + 1.0f;
  const u32 n = (u32)(int)q;
  const bool isOdd = n & 1;
  if (isSine) return floatOf(bitsOf(isOdd ? cos : sin) ^ (n & 2) << 30);
  return floatOf(bitsOf(isOdd ? sin : cos) ^ ((n + 1) & 2) << 30);
}
DEVICE void normal(const normalArgs& a) {
  EACH(i, a.n) {
    const u64 element = (u64)a.offset + (u64)i;
    const Words words = blockOf(element / 4, a.key);
    const int pair = (int)(element % 4) / 2 * 2;
    // In (0, 1] with all 32 bits for the radius, in [0, 1) with 24 for the angle.
    const float u = ((float)words.word[pair] + 0.5f) * (1.0f / 4294967296.0f);
    const float turns = (float)(words.word[pair + 1] >> 8) * (1.0f / 16777216.0f);
    const float square = -2.0f * logOfNormal(u), radius = sqrtf(square > 0.0f ? square : 0.0f);
    a.dst[i] = radius * ofTurns(turns, element % 2 == 1) * a.std + a.mean;
  }
}

DEVICE void sampleUniform(const sampleUniformArgs& a) {
  EACH(i, a.batch * a.rows * a.cols) {
    const u32 word = wordOf(a.key, a.sample, i / a.cols / a.rows, 0, i / a.cols % a.rows, i % a.cols);
    const float unit = ((float)(word >> 9) + 0.5f) * (1.0f / 8388608.0f);
    a.dst[i] = unit * (a.high - a.low) + a.low;
  }
}

template <class dtype> DEVICE void dropout(const dropoutArgs<dtype>& a) {
  EACH(i, a.batch * a.rows * a.cols) {
    put(a.y, i, get(a.x, i) * dropoutFactor(a, i / a.cols / a.rows, 0, i / a.cols % a.rows, i % a.cols));
  }
}
