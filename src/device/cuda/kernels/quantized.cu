// Weights of 4 and 8 bits in blocks, each with its largest magnitude; wasm/src/quantized.rs says how a block lies in memory.

constexpr int BLOCK = 64, NESTED = 256, GROUP_BYTES = 8 + NESTED + NESTED * BLOCK / 2;

/** Values of 4-bit codes: quantiles of a normal distribution. */
DEVICE float nf4Of(int code) {
  const float values[16] = {-1.0f, -0.6961928f, -0.52507305f, -0.3949175f, -0.28444138f, -0.18477343f, -0.091050036f, 0.0f,
                            0.0795803f, 0.1609302f, 0.2461123f, 0.33791524f, 0.44070983f, 0.562617f, 0.72295684f, 1.0f};
  return values[code];
}
/** The `i`th of `count + 1` equally spaced values from 0.1 to 1. */
DEVICE float edgeOf(int i, int count) {
  const float step = (1.0f - 0.1f) / (float)count;
  return i < (count + 1) / 2 ? 0.1f + step * (float)i : 1.0f - step * (float)(count - i);
}
/** Values of the 8-bit codes of magnitudes. */
DEVICE float dynamicOf(int code) {
  const float powers[7] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
  if (code == 127) return 0.0f;
  if (code == 255) return 1.0f;
  const int place = code > 127 ? code - 127 : 127 - code; // 1 … 127
  int exponent = 0;
  while (place >> (exponent + 1) != 0) exponent++;
  const int count = 1 << exponent, i = place - count;
  const float value = powers[exponent] * ((edgeOf(i, count) + edgeOf(i + 1, count)) / 2.0f);
  return code > 127 ? value : -value;
}

DEVICE float floatAt(const uint8* p) {
  return floatOf((u32)p[0] | (u32)p[1] << 8 | (u32)p[2] << 16 | (u32)p[3] << 24);
}
DEVICE void putFloatAt(uint8* p, float x) {
  for (int i = 0; i < 4; i++) p[i] = (u8)(bitsOf(x) >> 8 * i);
}

/** Element `i` of a weight. */
DEVICE float elementOf(const uint8* data, Quantization format, i64 i) {
  const i64 block = i / BLOCK;
  const int place = (int)(i % BLOCK);
  if (format == Quantization::int8) {
    const uint8* at = data + block * (4 + BLOCK);
    return (float)(signed char)at[4 + place] / 127.0f * floatAt(at);
  }
  const uint8* nibbles;
  float magnitude;
  if (format == Quantization::nf4) {
    const uint8* at = data + block * (4 + BLOCK / 2);
    magnitude = floatAt(at);
    nibbles = at + 4;
  } else {
    const uint8* at = data + block / NESTED * GROUP_BYTES;
    const int inGroup = (int)(block % NESTED);
    magnitude = dynamicOf(at[8 + inGroup]) * floatAt(at) + floatAt(at + 4);
    nibbles = at + 8 + NESTED + inGroup * BLOCK / 2;
  }
  const int byte = nibbles[place / 2];
  return nf4Of(place % 2 == 0 ? byte >> 4 : byte & 15) * magnitude;
}

template <class dtype> DEVICE void dequantize(const dequantizeArgs<dtype>& a) {
  EACH(i, a.n) put(a.dst, i, elementOf(a.src, a.format, i));
}

/** Index of the nearest of 16 values, of two that are as near the lower one. */
DEVICE int nearestNf4(float x) {
  int code = 0;
  while (code < 15 && (nf4Of(code) + nf4Of(code + 1)) / 2.0f < x) code++;
  return code;
}
DEVICE int nearestDynamic(float x) {
  int low = 0, high = 255;
  while (low < high) {
    const int middle = (low + high) / 2;
    if ((dynamicOf(middle) + dynamicOf(middle + 1)) / 2.0f < x) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The factor of a block's elements, and true if the block is full. */
struct Magnitude { float value, least; int count; };
DEVICE Magnitude magnitudeOf(const float* src, i64 n, i64 block) {
  const i64 left = n - block * BLOCK;
  const int count = (int)(left < BLOCK ? left : BLOCK);
  float largest = 0.0f;
  for (int i = 0; i < count; i++) largest = Max()(largest, fabsf(src[block * BLOCK + i]));
  const float least = largest < 1e-38f ? 1e-38f : largest;
  return {count == BLOCK ? largest : least, least, count};
}
DEVICE float scaledOf(const float* src, i64 block, const Magnitude& m, int i) {
  if (i >= m.count) return 0.0f;
  const float x = src[block * BLOCK + i];
  const float y = m.count == BLOCK ? x * (1.0f / m.least) : x / m.least;
  return y > 1.0f ? 1.0f : y < -1.0f ? -1.0f : y;
}
DEVICE void packNf4(uint8* to, const float* src, i64 block, const Magnitude& m) {
  for (int i = 0; i < BLOCK / 2; i++) {
    to[i] = (u8)(nearestNf4(scaledOf(src, block, m, 2 * i)) << 4 | nearestNf4(scaledOf(src, block, m, 2 * i + 1)));
  }
}

/** A thread a block, or a group of blocks whose magnitudes are quantized together. */
DEVICE void quantize(const quantizeArgs& a) {
  EACH(at, a.blocks) {
    uint8* to = a.dst + at * a.blockBytes;
    if (a.format != Quantization::nf4Nested) {
      const Magnitude m = magnitudeOf(a.src, a.n, at);
      putFloatAt(to, m.value);
      if (a.format == Quantization::nf4) packNf4(to + 4, a.src, at, m);
      else {
        for (int i = 0; i < BLOCK; i++) to[4 + i] = (u8)(int)rintf(scaledOf(a.src, at, m, i) * 127.0f);
      }
      continue;
    }
    const i64 first = at * NESTED, all = (a.n + BLOCK - 1) / BLOCK;
    const int count = (int)(all - first < NESTED ? all - first : NESTED);
    for (i64 i = 0; i < a.blockBytes; i++) to[i] = 0;
    double sum = 0.0;
    for (int b = 0; b < count; b++) {
      const Magnitude m = magnitudeOf(a.src, a.n, first + b);
      packNf4(to + 8 + NESTED + b * BLOCK / 2, a.src, first + b, m);
      sum += (double)m.value;
    }
    const float offset = (float)(sum / (double)count);
    float factor = 0.0f;
    for (int b = 0; b < count; b++) factor = Max()(factor, fabsf(magnitudeOf(a.src, a.n, first + b).value - offset));
    putFloatAt(to, factor);
    putFloatAt(to + 4, offset);
    const float least = factor < 1e-38f ? 1e-38f : factor;
    for (int b = 0; b < count; b++) {
      to[8 + b] = (u8)nearestDynamic((magnitudeOf(a.src, a.n, first + b).value - offset) / least);
    }
  }
}

template <class dtype, class outDtype> DEVICE void gemmQuantized(const gemmQuantizedArgs<dtype, outDtype>& a) {
  EACH_ROW(row, a.m) {
    const dtype* x = a.a + row * a.lda;
    outDtype* c = a.c + row * a.ldc;
    EACH_COLUMN(j, a.n) {
      float sum = 0.0f;
      for (i64 i = 0; i < a.k; i++) {
        const float weight = elementOf(a.b, a.format, a.transB ? j * a.k + i : i * a.n + j);
        sum = fmaf(get(x, i), rounded<dtype>(weight), sum);
      }
      const float value = a.alpha * sum;
      put(c, j, a.beta == 0.0f ? value : value + a.beta * get(c, j));
    }
  }
}
