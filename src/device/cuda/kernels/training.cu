// The gradient norm, optimizer updates, sums over ranks, random numbers: the same bits as those of the CPU.

#define ONCE if (blockIdx.x == 0 && threadIdx.x == 0)

// An exact accumulator: digits of 32 bits, the first worth 2^-1074, then counters; see `wasm/src/exact.rs`.
enum { LIMBS = ACCUMULATOR_WORDS - 3, NANS = LIMBS, INFINITIES, FAULTS };

DEVICE void add(u64* accumulator, double value) {
  if (value != value) {
    atomicAdd(&accumulator[NANS], (u64)1);
    return;
  }
  if (!isFinite(value)) {
    atomicAdd(&accumulator[INFINITIES], (u64)1);
    return;
  }
  const u64 bits = bitsOf(value);
  const int exponent = (int)(bits >> 52 & 0x7ff);
  const u64 fraction = bits & ((1ull << 52) - 1), mantissa = exponent == 0 ? fraction : fraction | 1ull << 52;
  const int place = exponent == 0 ? 0 : exponent - 1, limb = place / 32, shift = place % 32;
  const u64 low = (mantissa & 0xffffffff) << shift, high = (mantissa >> 32) << shift;
  const u64 middle = (low >> 32) + (high & 0xffffffff);
  // The middle digit and the last one are those of one number of 85 bits: what is carried goes on.
  atomicAdd(&accumulator[limb], low & 0xffffffff);
  atomicAdd(&accumulator[limb + 1], middle & 0xffffffff);
  atomicAdd(&accumulator[limb + 2], (middle >> 32) + (high >> 32));
}

DEVICE void clearAccumulator(const clearAccumulatorArgs& a) {
  if (blockIdx.x != 0) return;
  EACH_COLUMN(i, ACCUMULATOR_WORDS) a.accumulator[i] = i == FAULTS && a.status->kind != 0;
}

template <class dtype> DEVICE void sumPowers(const sumPowersArgs<dtype>& a) {
  SHARED(u64, own, ACCUMULATOR_WORDS);
  EACH_COLUMN(i, ACCUMULATOR_WORDS) own[i] = 0;
  __syncthreads();
  EACH(b, (a.n + a.block - 1) / a.block) {
    const i64 begin = b * a.block, end = begin + a.block < a.n ? begin + a.block : a.n;
    double lanes[16];
    for (int i = 0; i < 16; i++) lanes[i] = 0.0;
    for (i64 first = begin; first < end; first += 16) {
      for (int i = 0; i < 16; i++) {
        if (first + i >= end) break;
        const double x = fabs((double)get(a.src, first + i));
        lanes[i] += a.power == 1 ? x : a.power == 2 ? x * x : x * x * x;
      }
    }
    for (int half = 8; half > 0; half /= 2) {
      for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    }
    add(own, lanes[0]);
  }
  __syncthreads();
  EACH_COLUMN(i, ACCUMULATOR_WORDS) {
    if (own[i] != 0) atomicAdd((u64*)a.accumulator + i, own[i]);
  }
}

DEVICE void largest(const largestArgs& a) {
  if (blockIdx.x != 0) return;
  float most = 0.0f;
  EACH_COLUMN(i, a.n) most = Max()(most, fabsf(a.src[i]));
  most = overBlock(most, Max());
  if (threadIdx.x != 0) return;
  a.dst[0] = most;
  a.dst[1] = a.status->kind != 0 ? 1.0f : 0.0f;
}

DEVICE void accumulateLargest(const accumulateLargestArgs& a) {
  if (blockIdx.x != 0) return;
  EACH_COLUMN(i, ACCUMULATOR_WORDS) a.accumulator[i] = 0;
  __syncthreads();
  if (threadIdx.x != 0) return;
  add((u64*)a.accumulator, (double)a.src[0]);
  a.accumulator[FAULTS] = a.src[1] != 0.0f;
}

/** The value, rounded to nearest even. */
DEVICE double valueOf(const i64* accumulator) {
  if (accumulator[NANS] != 0) return doubleOf(0x7ff8000000000000);
  if (accumulator[INFINITIES] != 0) return doubleOf(0x7ff0000000000000);
  // The three highest digits that matter, and whether any below them is set.
  u64 carry = 0, top = 0, middle = 0, low = 0, isSet = 0;
  int highest = -1;
  u64 digits[3] = {0, 0, 0}; // of the places that were seen last, the latest first
  for (int i = 0; i < LIMBS + 2; i++) {
    const u64 word = (i < LIMBS ? (u64)accumulator[i] : 0), sum = word + carry;
    carry = (sum >> 32) + (sum < word ? 1ull << 32 : 0);
    isSet |= digits[2];
    digits[2] = digits[1], digits[1] = digits[0], digits[0] = sum & 0xffffffff;
    if (digits[0] == 0) continue;
    highest = i;
    top = digits[0], middle = digits[1], low = digits[2];
    if (isSet) low |= 1; // below the digits that are rounded away
  }
  if (highest < 0) return 0.0;
  int shift = 0;
  while (!(top >> 31 & 1)) {
    top = top << 1 | middle >> 31;
    middle = (middle << 1 & 0xffffffff) | low >> 31;
    low = low << 1 & 0xffffffff;
    shift++;
  }
  const u64 mantissa = top << 32 | middle | (low != 0);
  return scalbn((double)mantissa, 32 * (highest - 1) - shift - 1074);
}

DEVICE void clipFactor(const clipFactorArgs& a) {
  ONCE {
    const double total = valueOf(a.accumulator);
    const double inverse = a.scale ? 1.0 / (double)*a.scale : 1.0;
    const double norm = (a.power == 1 ? total : a.power == 2 ? sqrt(total) : cbrt(total)) * inverse;
    const bool isRefused = a.ifNonfinite != Nonfinite::keep && !isFinite(norm);
    *a.norm = (float)norm;
    if (a.factor) {
      const double clip = a.maxNorm / (norm + 1e-6);
      *a.factor = isRefused ? 1.0f : (float)((clip > 1.0 ? 1.0 : clip) * inverse);
    }
    if (isRefused && a.ifNonfinite == Nonfinite::fault) note(a.status, FAULT_NORM, 0, norm, 0);
    if (isRefused && a.ifNonfinite == Nonfinite::skip && a.overflow) *a.overflow = 1;
    *a.gate = isRefused || a.accumulator[FAULTS] != 0;
  }
}

DEVICE void updateScale(const updateScaleArgs& a) {
  ONCE {
    const double current = *a.scale;
    const int steps = *a.progress + 1;
    const bool hasOverflowed = *a.overflow != 0, grows = !hasOverflowed && steps == a.interval;
    const float grown = (float)(current * a.growth);
    *a.overflow = 0;
    if (hasOverflowed) *a.scale = (float)(current * a.backoff);
    else if (grows && isFinite(grown)) *a.scale = grown;
    *a.progress = hasOverflowed || grows ? 0 : steps;
  }
}

/** Elements that share settings; `src/optim/records.ts` writes it. */
struct Record {
  i64 start, end, state;
  u32 active, unused;
  double learningRate, weightDecay, settings[3];
};
/** The record of an element, if it is updated. */
DEVICE const Record* recordOf(const uint8* records, i64 count, i64 element) {
  for (i64 r = 0; r < count; r++) {
    const Record* record = (const Record*)records + r;
    if (element >= record->start && element < record->end) return record->active ? record : nullptr;
  }
  return nullptr;
}
/** By squaring: multiplications only, so the same bits everywhere. */
DEVICE double power(double base, u32 exponent) {
  double result = 1.0;
  for (; exponent > 0; exponent /= 2, base *= base) {
    if (exponent % 2 == 1) result *= base;
  }
  return result;
}
/** Counts the steps, after all elements have read them. */
template <class A> DEVICE void countSteps(const A& a) {
  if (blockIdx.x != 0 || (a.gate && *a.gate != 0)) return;
  EACH_COLUMN(r, a.numRecords) a.steps[r] += ((const Record*)a.records)[r].active != 0;
}

DEVICE void adamw(const adamwArgs& a) {
  if (a.gate && *a.gate != 0) return;
  EACH(i, a.n) {
    const Record* record = recordOf(a.records, a.numRecords, i);
    if (!record) continue;
    const u32 step = (u32)a.steps[record - (const Record*)a.records] + 1;
    const double beta1 = record->settings[0], beta2 = record->settings[1];
    const float weight = (float)(1.0 - beta1), g = a.grad[i];
    const i64 at = record->state + (i - record->start);
    const float decayed = a.param[i] * (float)(1.0 - record->learningRate * record->weightDecay);
    float m = a.expAvg[at];
    m = weight < 0.5f ? m + weight * (g - m) : g - (g - m) * (1.0f - weight); // PyTorch's lerp runs from the nearer end
    const float v = a.expAvgSq[at] * (float)beta2 + (float)(1.0 - beta2) * g * g;
    const float correction = (float)sqrt(1.0 - power(beta2, step));
    const float stepSize = (float)(-(record->learningRate / (1.0 - power(beta1, step))));
    a.expAvg[at] = m;
    a.expAvgSq[at] = v;
    a.param[i] = decayed + stepSize * m / (sqrtf(v) / correction + (float)record->settings[2]);
  }
}
DEVICE void adamwAfter(const adamwArgs& a) { countSteps(a); }

DEVICE void sgd(const sgdArgs& a) {
  if (a.gate && *a.gate != 0) return;
  EACH(i, a.n) {
    const Record* record = recordOf(a.records, a.numRecords, i);
    if (!record) continue;
    const u32 step = (u32)a.steps[record - (const Record*)a.records] + 1;
    const double momentum = record->settings[0];
    const float p = a.param[i];
    float d = a.grad[i];
    if (record->weightDecay != 0.0) d = d + (float)record->weightDecay * p;
    if (momentum != 0.0 && a.momentumBuffer) {
      float* buffer = a.momentumBuffer + record->state + (i - record->start);
      const float b = step == 1 ? d : *buffer * (float)momentum + (float)(1.0 - record->settings[1]) * d;
      *buffer = b;
      d = record->settings[2] != 0.0 ? d + (float)momentum * b : b;
    }
    a.param[i] = p + (float)-record->learningRate * d;
  }
}
DEVICE void sgdAfter(const sgdArgs& a) { countSteps(a); }

DEVICE void lion(const lionArgs& a) {
  if (a.gate && *a.gate != 0) return;
  EACH(i, a.n) {
    const Record* record = recordOf(a.records, a.numRecords, i);
    if (!record) continue;
    const double beta1 = record->settings[0], beta2 = record->settings[1];
    const i64 at = record->state + (i - record->start);
    const float g = a.grad[i], m = a.expAvg[at], rate = (float)record->learningRate;
    const float direction = m * (float)beta1 + g * (float)(1.0 - beta1);
    const float decayed = a.param[i] * (float)(1.0 - record->learningRate * record->weightDecay);
    a.expAvg[at] = m * (float)beta2 + (float)(1.0 - beta2) * g;
    a.param[i] = decayed + (0.0f < direction ? -rate : direction < 0.0f ? rate : direction);
  }
}
DEVICE void lionAfter(const lionArgs& a) { countSteps(a); }

DEVICE void lerp(const lerpArgs& a) {
  if (a.gate && *a.gate != 0) return;
  const float weight = a.factor ? (float)a.weight * *a.factor : (float)a.weight;
  EACH(i, a.n) {
    const float from = a.dst[i], to = a.src[i];
    a.dst[i] = weight < 0.5f ? from + weight * (to - from) : to - (to - from) * (1.0f - weight);
  }
}

DEVICE void largestOfBlocks(const largestOfBlocksArgs& a) {
  EACH_ROW(b, a.blocks) {
    const i64 low = b * a.block - a.first, high = low + a.block;
    const i64 begin = low < 0 ? 0 : low, end = high < a.n ? high : a.n;
    float most = 0.0f;
    EACH_COLUMN(i, end - begin) most = Max()(most, fabsf(a.src[begin + i]));
    most = overBlock(most, Max());
    if (threadIdx.x == 0) a.dst[b] = most;
  }
}

DEVICE void quantizeBlocks(const quantizeBlocksArgs& a) {
  if (a.gate && *a.gate != 0) return;
  EACH(i, a.n) {
    const float most = a.largest[(a.first + i) / a.block], x = most > 0.0f ? a.src[i] / most : 0.0f;
    // The last value of the map that is not above x, or the first of all.
    int low = 0;
    for (int step = 128; step > 0; step /= 2) {
      if (a.map[low + step] <= x) low += step;
    }
    a.codes[i] = (uint8)(low + (low < 255 && a.map[low + 1] - x < x - a.map[low]));
  }
}

DEVICE void dequantizeBlocks(const dequantizeBlocksArgs& a) {
  EACH(i, a.n) a.dst[i] = a.map[a.codes[i]] * a.largest[(a.first + i) / a.block];
}

template <class dtype, class dstDtype> DEVICE void sumRanks(const sumRanksArgs<dtype, dstDtype>& a) {
  const float scale = a.scale ? *a.scale : 1.0f;
  EACH(i, a.n) {
    float total = get(a.sources.at[0], i);
    for (i64 s = 1; s < a.sources.count; s++) total = total + get(a.sources.at[s], i);
    const float value = total * scale;
    put(a.dst, i, a.accumulate ? get(a.dst, i) + value : value);
  }
}
DEVICE void sumRanks(const sumRanksArgs<int64, int64>& a) {
  EACH(i, a.n) {
    u64 total = a.accumulate ? (u64)a.dst[i] : 0;
    for (i64 s = 0; s < a.sources.count; s++) total += (u64)a.sources.at[s][i];
    a.dst[i] = (i64)total;
  }
}
