// Routers, and the largest of rows. A router takes one thread a token, as a choice is a few steps over a few experts. Scores are
// taken anew where they are needed, in float64, as what an expert gives is multiplied by them.

enum { MOST_EXPERTS = 4096 };
#define LEAST_SUM 1e-20f

/** A softmax that is not kept: the largest, and the sum of the exponentials below it. */
struct Softmax { double top, sum; };
template <class F> DEVICE Softmax softmaxOf(i64 n, F value) {
  float top = -floatOf(0x7f800000);
  for (i64 i = 0; i < n; i++) {
    const float x = value(i);
    top = Max()(top, x);
  }
  Softmax all = {top, 0.0};
  for (i64 i = 0; i < n; i++) all.sum += exp((double)value(i) - all.top);
  return all;
}
DEVICE float shareOf(Softmax all, float x) { return (float)(exp((double)x - all.top) / all.sum); }

/** Numbers with their places, sorted together in the steps of libstdc++, which decide what becomes of equal ones. */
template <class Place> struct Queue {
  float* keys;
  Place* places;

  DEVICE_METHOD bool before(int i, int j) const {
    const float a = keys[i], b = keys[j];
    return (a != a && b == b) || a > b;
  }
  DEVICE_METHOD void swap(int i, int j) const {
    const float key = keys[i];
    const Place place = places[i];
    keys[i] = keys[j], places[i] = places[j];
    keys[j] = key, places[j] = place;
  }
  DEVICE_METHOD static int logarithm(int n) {
    int log = 0;
    while (n >>= 1) log++;
    return log;
  }
  /** Moves the item at `root` of a heap down to a leaf, and up again to where it belongs. */
  DEVICE_METHOD void sift(int first, int root, int len) const {
    int hole = root;
    while (2 * hole + 1 < len) {
      const int right = 2 * hole + 2;
      const int child = right < len && !before(first + right, first + right - 1) ? right : right - 1;
      swap(first + hole, first + child);
      hole = child;
    }
    while (hole > root && before(first + (hole - 1) / 2, first + hole)) {
      swap(first + hole, first + (hole - 1) / 2);
      hole = (hole - 1) / 2;
    }
  }
  DEVICE_METHOD void heapSelect(int first, int middle, int last) const {
    const int len = middle - first;
    for (int root = len / 2 - 1; root >= 0; root--) sift(first, root, len);
    for (int i = middle; i < last; i++) {
      if (!before(i, first)) continue;
      swap(i, first);
      sift(first, 0, len);
    }
  }
  DEVICE_METHOD void partialSort(int first, int middle, int last) const {
    heapSelect(first, middle, last);
    for (int len = middle - first - 1; len > 0; len--) {
      swap(first, first + len);
      sift(first, 0, len);
    }
  }
  DEVICE_METHOD void insertionSort(int first, int last) const {
    for (int i = first + 1; i < last; i++) {
      for (int j = i; j > first && before(j, j - 1); j--) swap(j, j - 1);
    }
  }
  /** Divides items around the median of three, which becomes the first. */
  DEVICE_METHOD int partition(int first, int last) const {
    const int a = first + 1, b = first + (last - first) / 2, c = last - 1;
    const int middle = before(a, b) ? (before(b, c) ? b : before(a, c) ? c : a) : (before(a, c) ? a : before(b, c) ? c : b);
    swap(first, middle);
    int left = first + 1, right = last;
    for (;;) {
      while (before(left, first)) left++;
      right--;
      while (before(first, right)) right--;
      if (left >= right) return left;
      swap(left, right);
      left++;
    }
  }
  DEVICE_METHOD void nthElement(int n, int nth) const {
    int first = 0, last = n, rounds = 2 * logarithm(n);
    while (last - first > 3) {
      if (rounds-- == 0) {
        heapSelect(first, nth + 1, last);
        return swap(first, nth);
      }
      const int cut = partition(first, last);
      if (cut <= nth) first = cut;
      else last = cut;
    }
    insertionSort(first, last);
  }
  /** Sorts but for stretches of up to 16 items; what is put off to later lies on a stack. */
  DEVICE_METHOD void sort(int last, int rounds) const {
    struct { int first, last, rounds; } later[32];
    int count = 0, first = 0;
    for (;;) {
      while (last - first > 16 && rounds > 0) {
        const int cut = partition(first, last);
        rounds--;
        later[count++] = {first, cut, rounds};
        first = cut;
      }
      if (last - first > 16) partialSort(first, last, last);
      if (count == 0) return;
      count--;
      first = later[count].first, last = later[count].last, rounds = later[count].rounds;
    }
  }
  /** Numbers the items, and moves the `k` largest of `n`, at least 1, to the front, in order. */
  DEVICE_METHOD void top(int n, int k) const {
    for (int i = 0; i < n; i++) places[i] = (Place)i;
    if (k * 64 <= n) return partialSort(0, k, n);
    nthElement(n, k - 1);
    sort(k - 1, 2 * logarithm(k > 2 ? k - 1 : 1)); // the last one is in its place
    insertionSort(0, k - 1);
  }
};

/** One thread sorts a row, as which of equal numbers are taken depends on each step; others bring it and take what is chosen. */
template <class dtype> DEVICE void topk(const topkArgs<dtype>& a) {
  if (a.k == 0 || a.k > a.cols) return;
  float* keys = a.scratch + blockIdx.x * a.room;
  const Queue<u32> queue = {keys, (u32*)(keys + a.cols)};
  EACH_ROW(r, a.rows) {
    EACH_COLUMN(j, a.cols) keys[j] = get(a.x, r * a.cols + j);
    __syncthreads();
    if (threadIdx.x == 0) queue.top((int)a.cols, (int)a.k);
    __syncthreads();
    EACH_COLUMN(j, a.k) a.indices[r * a.k + j] = (int)queue.places[j];
    __syncthreads();
  }
}

/** The scores of a token's experts. */
template <class T> struct Scores {
  Scoring kind;
  const T* logits;
  Softmax all;
  DEVICE_METHOD float operator()(i64 i) const {
    const float x = get(logits, i);
    if (kind == Scoring::softmax) return shareOf(all, x);
    return kind == Scoring::sigmoid ? (float)(1.0 / (1.0 + exp(-(double)x))) : x;
  }
};
template <class T> DEVICE Scores<T> scoresOf(Scoring kind, const T* logits, i64 experts) {
  Scores<T> scores = {kind, logits, {0.0, 1.0}};
  if (kind == Scoring::softmax) scores.all = softmaxOf(experts, [&](i64 i) { return get(logits, i); });
  return scores;
}

/** Shares of a token's experts without the one that is taken; those that are too far behind the best have none. */
template <class T> struct Shares {
  const T* logits;
  i64 taken, best;
  float top, jitter;
  Softmax all;
  DEVICE_METHOD float logit(i64 i) const {
    const float x = get(logits, i);
    const bool isFar = (top - x) / Max()(fabsf(x), top) > 2.0f * jitter;
    return i == taken || isFar ? -floatOf(0x7f800000) : x;
  }
};
template <class T> DEVICE Shares<T> sharesOf(const T* logits, i64 experts, i64 taken, float jitter) {
  Shares<T> shares = {logits, taken, 0, -floatOf(0x7f800000), jitter, {0.0, 1.0}};
  for (i64 i = 0; i < experts; i++) {
    const float x = get(logits, i);
    if (i == taken || x <= shares.top) continue;
    shares.top = x;
    shares.best = i;
    if (x != x) break;
  }
  shares.all = softmaxOf(experts, [&](i64 i) { return shares.logit(i); });
  return shares;
}

template <class dtype> DEVICE void route(const routeArgs<dtype>& a) {
  SHARED(float, keys, MOST_EXPERTS);
  SHARED(float, groups, MOST_EXPERTS);
  SHARED(u16, places, MOST_EXPERTS);
  if (threadIdx.x != 0 || a.experts == 0 || a.topK == 0) return;
  EACH_ROW(r, a.rows) {
    const dtype* logits = a.logits + r * a.experts;
    float* weights = a.weights + r * a.topK;
    int* chosen = a.chosen + r * a.topK;
    if (a.scoring == Scoring::sparseMixer) {
      i64 taken = a.experts;
      for (i64 j = 0; j < a.topK; j++) {
        const Shares<dtype> shares = sharesOf(logits, a.experts, taken, a.jitter);
        taken = shares.best;
        float weight = 1.0f;
        if (a.noise) {
          const float* noise = a.noise + (r * a.topK + j) * 2 * a.experts;
          double most = -floatOf(0x7f800000);
          for (i64 i = 0; i < a.experts; i++) {
            const double drawn = (double)get(logits, i) - log(-log((double)noise[i]));
            if (shareOf(shares.all, shares.logit(i)) > 0.0f && drawn > most) most = drawn, taken = i;
          }
          if (taken != shares.best && !(noise[a.experts] > 0.75f)) weight = 0.3333f;
        }
        chosen[j] = (int)taken;
        weights[j] = shareOf(shares.all, shares.logit(taken)) * a.scale * weight;
      }
      continue;
    }
    const Scores<dtype> scores = scoresOf(a.scoring, logits, a.experts);
    const Queue<u16> queue = {keys, places};
    for (i64 i = 0; i < a.experts; i++) keys[i] = scores(i) + (a.bias ? a.bias[i] : 0.0f);
    if (a.groups > 1) {
      const i64 size = a.experts / a.groups;
      for (i64 g = 0; g < a.groups; g++) {
        float first = -floatOf(0x7f800000), second = first;
        for (i64 i = 0; i < size; i++) {
          const float key = keys[g * size + i];
          if (!(key <= first)) second = first, first = key;
          else if (key > second) second = key;
        }
        groups[g] = a.groupBest > 1 ? first + second : first;
      }
      Queue<u16>{groups, places}.top((int)a.groups, (int)a.topGroups);
      for (i64 g = a.topGroups; g < a.groups; g++) {
        for (i64 i = 0; i < size; i++) keys[places[g] * size + i] = -floatOf(0x7f800000);
      }
    }
    queue.top((int)a.experts, (int)a.topK);
    float sum = 0.0f;
    for (i64 j = 0; j < a.topK; j++) {
      chosen[j] = places[j];
      weights[j] = scores(places[j]);
      sum += weights[j];
    }
    const bool isOfTop = a.scoring == Scoring::softmaxOfTop;
    const Softmax all = isOfTop ? softmaxOf(a.topK, [&](i64 j) { return weights[j]; }) : Softmax{0.0, 1.0};
    const float divisor = a.normalize && !isOfTop ? sum + LEAST_SUM : 1.0f;
    for (i64 j = 0; j < a.topK; j++) weights[j] = (isOfTop ? shareOf(all, weights[j]) : weights[j]) / divisor * a.scale;
  }
}

template <class dtype> DEVICE void routeBackward(const routeBackwardArgs<dtype>& a) {
  SHARED(float, gradient, MOST_EXPERTS);
  if (threadIdx.x != 0) return;
  EACH_ROW(r, a.rows) {
    const dtype* logits = a.logits + r * a.experts;
    const int* chosen = a.chosen + r * a.topK;
    const float* dweights = a.dweights + r * a.topK;
    for (i64 i = 0; i < a.experts; i++) gradient[i] = 0.0f;
    if (a.scoring == Scoring::sparseMixer) {
      i64 taken = a.experts;
      for (i64 j = 0; j < a.topK; j++) {
        const Shares<dtype> shares = sharesOf(logits, a.experts, taken, a.jitter);
        taken = chosen[j]; // which may have been drawn
        const double d = (double)(dweights[j] * a.scale) * shareOf(shares.all, shares.logit(taken));
        for (i64 i = 0; i < a.experts; i++) {
          gradient[i] += (float)(d * ((i == taken ? 1.0 : 0.0) - shareOf(shares.all, shares.logit(i))));
        }
      }
    } else {
      const Scores<dtype> scores = scoresOf(a.scoring, logits, a.experts);
      const bool isOfTop = a.scoring == Scoring::softmaxOfTop;
      const Softmax all = isOfTop ? softmaxOf(a.topK, [&](i64 j) { return scores(chosen[j]); }) : Softmax{0.0, 1.0};
      auto score = [&](i64 j) -> double { return isOfTop ? shareOf(all, scores(chosen[j])) : scores(chosen[j]); };
      auto dweight = [&](i64 j) -> double { return dweights[j] * a.scale; };
      double sum = 0.0, mean = 0.0, dot = 0.0;
      for (i64 j = 0; j < a.topK; j++) sum += score(j);
      if (isOfTop) sum = 1.0;
      const bool isDivided = a.normalize && !isOfTop;
      const double divisor = isDivided ? sum + (double)LEAST_SUM : 1.0;
      for (i64 j = 0; j < a.topK; j++) mean += dweight(j) * score(j);
      mean /= sum;
      auto dscore = [&](i64 j) -> double { return (isDivided ? dweight(j) - mean : dweight(j)) / divisor; };
      for (i64 j = 0; j < a.topK; j++) dot += dscore(j) * score(j);
      for (i64 j = 0; j < a.topK; j++) {
        const double s = score(j), d = dscore(j);
        gradient[chosen[j]] = (float)(a.scoring == Scoring::sigmoid ? d * s * (1.0 - s) : isOfTop ? s * (d - dot) : d * s);
      }
      if (a.scoring == Scoring::softmax) {
        for (i64 i = 0; i < a.experts; i++) gradient[i] -= (float)(scores(i) * dot);
      }
    }
    for (i64 i = 0; i < a.experts; i++) put(a.dlogits, r * a.experts + i, gradient[i]);
  }
}
