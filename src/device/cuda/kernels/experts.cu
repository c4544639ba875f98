// Mixtures of experts: the order of tokens by expert, products of each expert's rows.

/** First row of a group, and one past its last. */
struct Group { i64 first, end; };
DEVICE Group groupOf(const int* ends, i64 group, i64 rows) {
  // Ends that a router did not give ascend no less: each is taken within what is left.
  i64 first = 0;
  for (i64 g = 0; g < group; g++) {
    const i64 end = ends[g] < first ? first : ends[g] > rows ? rows : ends[g];
    first = end;
  }
  const i64 end = ends[group] < first ? first : ends[group] > rows ? rows : ends[group];
  return {first, end};
}
/** The group of a row; `groups` if it is of none. */
DEVICE i64 groupOfRow(const int* ends, i64 groups, i64 rows, i64 row) {
  i64 first = 0;
  for (i64 g = 0; g < groups; g++) {
    const i64 end = ends[g] < first ? first : ends[g] > rows ? rows : ends[g];
    if (row >= first && row < end) return g;
    first = end;
  }
  return groups;
}

DEVICE i64 expertOf(const int* chosen, i64 pair, i64 experts) {
  const u32 expert = (u32)chosen[pair];
  return expert < experts ? expert : experts - 1;
}
/** A thread an expert: it counts the pairs of those before its own, and gives its own their places. */
DEVICE void sortPairs(const sortPairsArgs& a) {
  EACH(e, a.experts) {
    i64 before = 0, own = 0;
    for (i64 i = 0; i < a.pairs; i++) {
      const i64 expert = expertOf(a.chosen, i, a.experts);
      before += expert < e;
      own += expert == e;
    }
    a.ends[e] = (int)(before + own);
    for (i64 i = 0; i < a.pairs; i++) {
      if (expertOf(a.chosen, i, a.experts) == e) a.places[i] = (int)before++;
    }
  }
}

template <class dtype> DEVICE void combinePairs(const combinePairsArgs<dtype>& a) {
  EACH(i, a.rows * a.cols) {
    const i64 t = i / a.cols, j = i % a.cols;
    float sum = 0.0f;
    for (i64 pair = t * a.count; pair < (t + 1) * a.count; pair++) {
      sum = fmaf(a.weights ? a.weights[pair] : 1.0f, get(a.x, a.places[pair] * a.cols + j), sum);
    }
    put(a.y, i, sum);
  }
}

template <class dtype> DEVICE void combinePairsBackward(const combinePairsBackwardArgs<dtype>& a) {
  EACH_ROW(pair, a.rows * a.count) {
    const i64 place = a.places[pair] * a.cols, row = pair / a.count * a.cols;
    if (a.dweights) {
      float sum = 0.0f;
      EACH_COLUMN(j, a.cols) sum = fmaf(get(a.dy, row + j), get(a.x, place + j), sum);
      sum = overBlock(sum, Sum());
      if (threadIdx.x == 0) a.dweights[pair] = sum;
    }
    if (a.dx) EACH_COLUMN(j, a.cols) put(a.dx, place + j, (a.weights ? a.weights[pair] : 1.0f) * get(a.dy, row + j));
  }
}

template <class dtype> DEVICE void groupedGemm(const groupedGemmArgs<dtype>& a) {
  EACH_ROW(r, a.rows) {
    const i64 g = groupOfRow(a.ends, a.groups, a.rows, r);
    if (g == a.groups) continue;
    const dtype *x = a.a + r * a.k, *y = a.b + g * a.n * a.k;
    EACH_COLUMN(j, a.n) {
      float sum = 0.0f;
      for (i64 i = 0; i < a.k; i++) sum = fmaf(get(x, i), get(y, a.transB ? j * a.k + i : i * a.n + j), sum);
      put(a.c, r * a.n + j, sum);
    }
  }
}

template <class dtype, class outDtype> DEVICE void groupedGemmOuter(const groupedGemmOuterArgs<dtype, outDtype>& a) {
  EACH_ROW(row, a.groups * a.m) {
    const i64 i = row % a.m;
    const Group group = groupOf(a.ends, row / a.m, a.rows);
    EACH_COLUMN(j, a.n) {
      float sum = 0.0f;
      for (i64 r = group.first; r < group.end; r++) sum = fmaf(get(a.a, r * a.m + i), get(a.b, r * a.n + j), sum);
      put(a.c, row * a.n + j, sum);
    }
  }
}

template <class dtype> DEVICE void groupedBias(const groupedBiasArgs<dtype>& a) {
  EACH_ROW(r, a.rows) {
    const i64 g = groupOfRow(a.ends, a.groups, a.rows, r);
    if (g == a.groups) continue;
    EACH_COLUMN(j, a.cols) put(a.x, r * a.cols + j, get(a.x, r * a.cols + j) + get(a.bias, g * a.cols + j));
  }
}

DEVICE void groupedSum(const groupedSumArgs& a) {
  EACH_ROW(g, a.groups) {
    const Group group = groupOf(a.ends, g, a.rows);
    EACH_COLUMN(j, a.cols) {
      double sum = 0.0;
      for (i64 r = group.first; r < group.end; r++) sum += a.x[r * a.cols + j];
      a.y[g * a.cols + j] = (float)sum;
    }
  }
}

/** Of a gate and an up: the result, and what each gives of a gradient of 1. Where a clamp holds, and at its limits,
 * nothing flows back.
 */
struct Gated { float value, dgate, dup; };
DEVICE Gated gated(float gate, float up, float alpha, float limit) {
  const float g = gate > limit ? limit : gate;
  const float u = (up < -limit ? -limit : up > limit ? limit : up) + 1.0f, s = sigmoid(alpha * g);
  return {u * (g * s), gate >= limit ? 0.0f : u * s * (1.0f + alpha * g * (1.0f - s)), fabsf(up) >= limit ? 0.0f : g * s};
}
template <class dtype> DEVICE void clampedSwiglu(const clampedSwigluArgs<dtype>& a) {
  EACH(i, a.n) put(a.y, i, gated(get(a.gateUp, 2 * i), get(a.gateUp, 2 * i + 1), a.alpha, a.limit).value);
}
template <class dtype> DEVICE void clampedSwigluBackward(const clampedSwigluBackwardArgs<dtype>& a) {
  EACH(i, a.n) {
    const Gated own = gated(get(a.gateUp, 2 * i), get(a.gateUp, 2 * i + 1), a.alpha, a.limit);
    const float d = get(a.dy, i);
    put(a.dgateUp, 2 * i, d * own.dgate);
    put(a.dgateUp, 2 * i + 1, d * own.dup);
  }
}
