// Which queries see which keys: those of an interval, of which a mask may hide some. Sequences are shorter than 2^31.

/** The first key of the document of a query, which is there. */
template <class A> DEVICE i64 beginOfDocument(const A& a, i64 batch, i64 query) { return a.starts[batch * a.seqQ + query]; }
/** The keys that a query may see lie from here on; those of a query that is not there are those of the last. */
template <class A> DEVICE int beginOfKeys(const A& a, i64 batch, i64 query) {
  i64 key = a.window == 0 ? 0 : query + a.seqK - a.seqQ - a.window + 1;
  if (a.starts && a.seqQ > 0) key = Max()(key, beginOfDocument(a, batch, query < a.seqQ ? query : a.seqQ - 1));
  return key < 0 ? 0 : (int)key;
}
/** And end here; those of a query that is not there are those of the last. */
template <class A> DEVICE int endOfKeys(const A& a, i64 query) {
  const i64 own = (query < a.seqQ ? query : a.seqQ - 1) + a.seqK - a.seqQ;
  return (int)(a.causal && own < a.seqK - 1 ? own + 1 : a.seqK);
}
/** The queries that may see a key lie from here on. */
template <class A> DEVICE int beginOfQueries(const A& a, i64 key) {
  const i64 query = a.causal ? key - (a.seqK - a.seqQ) : 0;
  return query < 0 ? 0 : (int)query;
}
/** And end here; those of a key that is not there are those of the last. */
template <class A> DEVICE int endOfQueries(const A& a, i64 batch, i64 key) {
  const i64 last = key < a.seqK ? key : a.seqK - 1, ofWindow = last + a.window - (a.seqK - a.seqQ);
  i64 end = a.window == 0 || ofWindow > a.seqQ ? a.seqQ : ofWindow;
  if (!a.starts) return (int)end;
  // Documents begin in ascending order: the first query whose document begins behind the key is found by halves.
  for (i64 from = 0; from < end;) {
    const i64 middle = (from + end) / 2;
    if (beginOfDocument(a, batch, middle) > last) end = middle;
    else from = middle + 1;
  }
  return (int)end;
}
template <class A> DEVICE bool hasMask(const A& a) { return a.keyMask && a.maskRows != 0; }
/** True if a mask lets a query see a key; both exist. */
template <class A> DEVICE bool isUnmasked(const A& a, i64 batch, i64 query, i64 key) {
  return a.keyMask[(batch * a.maskRows + (a.maskRows == 1 ? 0 : query)) * a.seqK + key] != 0;
}
/** True if a query may see a key. */
template <class A> DEVICE bool isSeen(const A& a, i64 batch, i64 query, i64 key) {
  if (query >= a.seqQ || key < beginOfKeys(a, batch, query) || key >= endOfKeys(a, query)) return false;
  return !hasMask(a) || isUnmasked(a, batch, query, key);
}
/**
 * For some queries the keys, or for some keys the queries: those of which any pair may be seen, and those of which all
 * are.
 */
struct Span {
  int from, to, openFrom, openTo;
  DEVICE_METHOD bool has(int first, int count) const { return first < to && first + count > from; }
  DEVICE_METHOD bool isOpen(int first, int count) const { return first >= openFrom && first + count <= openTo; }
};
template <class A> DEVICE Span keysOf(const A& a, i64 batch, i64 query, int count) {
  const bool isClosed = hasMask(a) || query + count > a.seqQ;
  const i64 last = query + count - 1;
  return {beginOfKeys(a, batch, query), endOfKeys(a, last), beginOfKeys(a, batch, last), isClosed ? 0 : endOfKeys(a, query)};
}
template <class A> DEVICE Span queriesOf(const A& a, i64 batch, i64 key, int count) {
  const bool isClosed = hasMask(a) || key + count > a.seqK;
  const i64 last = key + count - 1;
  const int openTo = isClosed ? 0 : endOfQueries(a, batch, key);
  return {beginOfQueries(a, key), endOfQueries(a, batch, last), beginOfQueries(a, last), openTo};
}
/** A score, bounded by the softcap if there is one. */
template <class A> DEVICE float capped(const A& a, float score) {
  return a.softcap > 0.0f ? a.softcap * tanhf(score / a.softcap) : score;
}
/** The derivative of a bounded score by the score, found from the bounded one. */
template <class A> DEVICE float slopeOf(const A& a, float bounded) {
  const float share = a.softcap > 0.0f ? bounded / a.softcap : 0.0f;
  return 1.0f - share * share;
}
