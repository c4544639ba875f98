// A test double of cuDNN's backend: descriptors of attention as one operation are checked as cuDNN's documentation has them,
// and computed on a stream of the double of the CUDA runtime.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include "cudnn_attention.hpp"
#define API extern "C" __attribute__((visibility("default")))

enum { OK = 0, BAD_PARAM = 2000, NULL_POINTER = 2002, MISALIGNED = 2003, NOT_FINALIZED = 2004, SHAPE_MISMATCH = 2008,
       ATTRIBUTE_TYPE = 2010, DESCRIPTOR_TYPE = 2012, NOT_SUPPORTED = 3000, NO_KERNEL = 4001 };
enum { HANDLE = 0, DATA_TYPE, BOOLEAN, INT64, VOID_PTR = 6, HEUR_MODE = 8, NOTE = 11, POINTWISE_MODE = 14, DESCRIPTOR = 15 };
enum { ENGINE = 2, CONFIG, HEURISTICS, PLAN, GRAPH = 15, PACK, TENSOR, FORWARD = 41, BACKWARD = 43, MASK = 44 };

// The attributes of each kind that can be set: the type, how many elements, which kind of descriptor, whether it may be left out.
struct Rule { int kind, name, type, least, most, of; bool isOptional; };
static const Rule RULES[] = {
  {HEURISTICS, 200, HEUR_MODE, 1, 1, 0, false}, {HEURISTICS, 201, DESCRIPTOR, 1, 1, GRAPH, false},
  {PLAN, 400, HANDLE, 1, 1, 0, false}, {PLAN, 401, DESCRIPTOR, 1, 1, CONFIG, false},
  {GRAPH, 800, HANDLE, 1, 1, 0, true}, {GRAPH, 801, DESCRIPTOR, 1, 1, -1, false},
  {TENSOR, 900, INT64, 1, 1, 0, false}, {TENSOR, 901, DATA_TYPE, 1, 1, 0, false}, {TENSOR, 902, INT64, 4, 4, 0, false},
  {TENSOR, 903, INT64, 4, 4, 0, false}, {TENSOR, 906, INT64, 1, 1, 0, false}, {TENSOR, 907, BOOLEAN, 1, 1, 0, true},
  {TENSOR, 908, BOOLEAN, 1, 1, 0, true},
  {PACK, 1000, INT64, 1, 32, 0, false}, {PACK, 1001, VOID_PTR, 1, 32, 0, false}, {PACK, 1003, VOID_PTR, 1, 1, 0, false},
  {FORWARD, 2800, DESCRIPTOR, 1, 1, TENSOR, false}, {FORWARD, 2801, DESCRIPTOR, 1, 1, TENSOR, false},
  {FORWARD, 2802, DESCRIPTOR, 1, 1, TENSOR, false}, {FORWARD, 2803, DESCRIPTOR, 1, 1, TENSOR, false},
  {FORWARD, 2804, DESCRIPTOR, 1, 1, TENSOR, true}, {FORWARD, 2805, DESCRIPTOR, 1, 1, TENSOR, true},
  {FORWARD, 2811, DESCRIPTOR, 1, 1, GRAPH, true}, {FORWARD, 2812, INT64, 1, 1, 0, true}, {FORWARD, 2813, INT64, 1, 1, 0, true},
  {BACKWARD, 2851, DESCRIPTOR, 1, 1, TENSOR, false}, {BACKWARD, 2852, DESCRIPTOR, 1, 1, TENSOR, false},
  {BACKWARD, 2853, DESCRIPTOR, 1, 1, TENSOR, false}, {BACKWARD, 2854, DESCRIPTOR, 1, 1, TENSOR, false},
  {BACKWARD, 2855, DESCRIPTOR, 1, 1, TENSOR, false}, {BACKWARD, 2856, DESCRIPTOR, 1, 1, TENSOR, true},
  {BACKWARD, 2859, DESCRIPTOR, 1, 1, TENSOR, false}, {BACKWARD, 2860, DESCRIPTOR, 1, 1, TENSOR, false},
  {BACKWARD, 2861, DESCRIPTOR, 1, 1, TENSOR, false}, {BACKWARD, 2862, DESCRIPTOR, 1, 1, TENSOR, false},
  {BACKWARD, 2867, DESCRIPTOR, 1, 1, GRAPH, true}, {BACKWARD, 2868, INT64, 1, 1, 0, true}, {BACKWARD, 2869, INT64, 1, 1, 0, true},
  {MASK, 3000, DESCRIPTOR, 1, 1, TENSOR, false}, {MASK, 3001, DESCRIPTOR, 1, 1, TENSOR, true},
  {MASK, 3002, DESCRIPTOR, 1, 1, TENSOR, true}, {MASK, 3005, DESCRIPTOR, 1, 1, TENSOR, true},
  {MASK, 3006, DESCRIPTOR, 1, 1, TENSOR, false}, {MASK, 3007, POINTWISE_MODE, 1, 1, 0, false},
};

struct Descriptor {
  int kind;
  bool isFinal = false;
  std::map<int, std::vector<uint64_t>> values; // elements, each as a word
  int engine = 0;                              // of an engine and a configuration
  Descriptor *graph = nullptr;                 // of a configuration
  int64_t word(int name, size_t i = 0) const { return (int64_t)values.at(name)[i]; }
  bool has(int name) const { return values.count(name) > 0; }
  Descriptor *part(int name) const { return has(name) ? (Descriptor *)word(name) : nullptr; }
};
struct Handle { void *stream = nullptr; };
static thread_local std::string lastError;
static std::set<Descriptor *> alive;

static int fail(int status, const std::string &why) { return lastError = why, status; }
static bool isThere(const void *d) { return alive.count((Descriptor *)d) > 0; }
static int sizeOf(int type) { return type == BOOLEAN ? 1 : type == INT64 || type == VOID_PTR || type == DESCRIPTOR || type == HANDLE ? 8 : 4; }

API size_t cudnnGetVersion() {
  const char *version = getenv("TWIN_CUDNN_VERSION");
  return version ? atoi(version) : 92801;
}
API size_t cudnnGetCudartVersion() { return 13000; }
API const char *cudnnGetErrorString(int s) {
  switch (s) {
    case OK: return "CUDNN_STATUS_SUCCESS";
    case NULL_POINTER: return "CUDNN_STATUS_BAD_PARAM_NULL_POINTER";
    case MISALIGNED: return "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER";
    case NOT_FINALIZED: return "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED";
    case SHAPE_MISMATCH: return "CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH";
    case ATTRIBUTE_TYPE: return "CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE";
    case DESCRIPTOR_TYPE: return "CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE";
    case NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case NO_KERNEL: return "CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED";
    default: return "CUDNN_STATUS_BAD_PARAM";
  }
}
API void cudnnGetLastErrorString(char *text, size_t bytes) { snprintf(text, bytes, "%s", lastError.c_str()); }
API int cudnnCreate(Handle **h) { return *h = new Handle, OK; }
API int cudnnDestroy(Handle *h) { return delete h, OK; }
API int cudnnSetStream(Handle *h, void *stream) { return h->stream = stream, OK; }
// Descriptors that there are, for tests.
API int twinCudnnDescriptors() { return (int)alive.size(); }

API int cudnnBackendCreateDescriptor(int kind, Descriptor **place) {
  static const std::set<int> kinds = {ENGINE, CONFIG, HEURISTICS, PLAN, GRAPH, PACK, TENSOR, FORWARD, BACKWARD, MASK};
  if (!kinds.count(kind)) return fail(NOT_SUPPORTED, "the double has no descriptor of kind " + std::to_string(kind));
  *place = new Descriptor{kind};
  alive.insert(*place);
  return OK;
}
API int cudnnBackendDestroyDescriptor(Descriptor *d) {
  if (!alive.erase(d)) return fail(BAD_PARAM, "a descriptor is destroyed that is not there");
  return delete d, OK;
}

API int cudnnBackendSetAttribute(Descriptor *d, int name, int type, int64_t count, const void *elements) {
  if (!isThere(d)) return fail(BAD_PARAM, "an attribute of a descriptor that is not there");
  if (d->isFinal) return fail(BAD_PARAM, "an attribute of a descriptor that is finalized");
  if (elements == nullptr) return fail(NULL_POINTER, "an attribute without elements");
  const Rule *rule = std::find_if(std::begin(RULES), std::end(RULES), [&](const Rule &r) { return r.kind == d->kind && r.name == name; });
  if (rule == std::end(RULES)) return fail(BAD_PARAM, "attribute " + std::to_string(name) + " is none of kind " + std::to_string(d->kind));
  if (rule->type != type) return fail(ATTRIBUTE_TYPE, "attribute " + std::to_string(name) + " has type " + std::to_string(rule->type));
  if (count < rule->least || count > rule->most) return fail(BAD_PARAM, "attribute " + std::to_string(name) + " of another count");
  std::vector<uint64_t> words(count);
  for (int64_t i = 0; i < count; i++) memcpy(&words[i], (const char *)elements + i * sizeOf(type), sizeOf(type));
  if (type == DESCRIPTOR)
    for (uint64_t word : words) {
      Descriptor *part = (Descriptor *)word;
      if (!isThere(part)) return fail(NULL_POINTER, "attribute " + std::to_string(name) + " is no descriptor");
      bool isOperation = part->kind == FORWARD || part->kind == BACKWARD || part->kind == MASK;
      if (rule->of < 0 ? !isOperation : part->kind != rule->of) return fail(DESCRIPTOR_TYPE, "attribute " + std::to_string(name) + " of another kind");
      if (!part->isFinal) return fail(NOT_FINALIZED, "attribute " + std::to_string(name) + " is not finalized");
    }
  d->values[name] = words;
  return OK;
}

static Tensor tensorOf(const Descriptor *d) {
  Tensor t;
  t.uid = d->word(906);
  t.alignment = d->word(900);
  t.type = (int)d->word(901);
  for (int i = 0; i < 4; i++) t.dims.push_back(d->word(902, i)), t.strides.push_back(d->word(903, i));
  t.isVirtual = d->has(907) && d->word(907);
  t.isByValue = d->has(908) && d->word(908);
  return t;
}
static bool isScalar(const Descriptor *d, int type) {
  return !d || (tensorOf(d).isByValue && tensorOf(d).isLike({1, 1, 1, 1}, type));
}

static int finalizeTensor(const Tensor &t) {
  for (int i = 0; i < 4; i++)
    if (t.dims[i] <= 0 || t.strides[i] <= 0) return fail(BAD_PARAM, "a dim or stride that is not positive");
  if (t.type != 0 && t.type != 2 && t.type != 4 && t.type != 9) return fail(NOT_SUPPORTED, "a data type that the double lacks");
  if (t.alignment <= 0 || t.alignment % t.bytes()) return fail(BAD_PARAM, "an alignment that the type does not divide");
  return OK;
}
static int finalizeMask(const Descriptor *d) {
  Tensor x = tensorOf(d->part(3000)), y = tensorOf(d->part(3006));
  if (!x.isVirtual || !y.isVirtual || x.type != 0 || y.type != 0 || x.dims != y.dims) return fail(BAD_PARAM, "scores that are not virtual, or differ");
  if (x.uid == y.uid) return fail(BAD_PARAM, "one unique id of two tensors");
  if (d->word(3007) != 303) return fail(NOT_SUPPORTED, "another comparison than >=");
  if (!d->has(3005) || !isScalar(d->part(3005), 0) || !isScalar(d->part(3001), 4) || !isScalar(d->part(3002), 4)) return fail(BAD_PARAM, "a scalar of a mask");
  return d->has(3001) == d->has(3002) ? OK : fail(NOT_SUPPORTED, "one length without the other");
}

static int finalizeAttention(const Descriptor *d) {
  bool back = d->kind == BACKWARD;
  auto of = [&](int forward, int backward) { return tensorOf(d->part(back ? backward : forward)); };
  Tensor q = of(2800, 2851), k = of(2801, 2852), v = of(2802, 2853), o = of(2803, 2854);
  int64_t B = q.dims[0], H = q.dims[1], S = q.dims[2], D = q.dims[3], K = k.dims[1], L = k.dims[2], V = v.dims[3];
  if (q.type != 2 && q.type != 9) return fail(NOT_SUPPORTED, "attention of another type than float16 and bfloat16");
  if (H % K || !k.isLike({B, K, L, D}, q.type) || !v.isLike({B, K, L, V}, q.type) || !o.isLike({B, H, S, V}, q.type)) return fail(SHAPE_MISMATCH, "q, k, v and o do not fit");
  int stats = back ? 2855 : 2804;
  if (d->has(stats) && !tensorOf(d->part(stats)).isLike({B, H, S, 1}, 0)) return fail(SHAPE_MISMATCH, "statistics do not fit");
  if (!isScalar(d->part(back ? 2856 : 2805), 0)) return fail(BAD_PARAM, "a scale that is no scalar");
  if (back && (!of(0, 2859).isLike(q.dims, q.type) || !of(0, 2860).isLike(k.dims, q.type) || !of(0, 2861).isLike(v.dims, q.type) || !of(0, 2862).isLike(o.dims, q.type))) return fail(SHAPE_MISMATCH, "gradients do not fit");
  int sub = back ? 2867 : 2811;
  if (!d->has(sub)) return OK;
  const Descriptor *mask = d->part(sub)->part(801);
  if (mask->kind != MASK || !d->has(sub + 1) || !d->has(sub + 2)) return fail(NOT_SUPPORTED, "a graph of scores that is no mask");
  Tensor x = tensorOf(mask->part(3000)), y = tensorOf(mask->part(3006));
  if (!x.isLike({B, H, S, L}, 0)) return fail(SHAPE_MISMATCH, "scores do not fit");
  return x.uid == d->word(sub + 1) && y.uid == d->word(sub + 2) ? OK : fail(BAD_PARAM, "a graph's input or output is another tensor");
}

static int64_t workspaceOf(const Descriptor *operation) {
  if (operation->kind == FORWARD) return 256;
  Tensor q = tensorOf(operation->part(2851));
  return 4 * q.numel();
}

// What the double proposes: an engine whose bits differ, one that fails to compile, and one that computes.
enum { DIFFERS = 1, FAILS, COMPUTES };
static std::vector<int> proposals(const Descriptor *heuristics) {
  const Descriptor *operation = heuristics->part(201)->part(801);
  if (operation->kind == BACKWARD && tensorOf(operation->part(2851)).dims[3] > 128) return {DIFFERS}; // as on most cards
  return heuristics->word(200) == 3 ? std::vector<int>{DIFFERS, FAILS} : std::vector<int>{DIFFERS, COMPUTES};
}

API int cudnnBackendFinalize(Descriptor *d) {
  if (!isThere(d) || d->isFinal) return fail(BAD_PARAM, "a descriptor that is not there, or finalized already");
  for (const Rule &rule : RULES)
    if (rule.kind == d->kind && !rule.isOptional && !d->has(rule.name)) return fail(BAD_PARAM, "attribute " + std::to_string(rule.name) + " is missing");
  int status = OK;
  if (d->kind == TENSOR) status = finalizeTensor(tensorOf(d));
  else if (d->kind == MASK) status = finalizeMask(d);
  else if (d->kind == FORWARD || d->kind == BACKWARD) status = finalizeAttention(d);
  else if (d->kind == PLAN && d->part(401)->engine != COMPUTES) status = fail(NO_KERNEL, "the engine does not compile");
  else if (d->kind == PACK && d->values[1000].size() != d->values[1001].size()) status = fail(BAD_PARAM, "as many ids as pointers");
  d->isFinal = status == OK;
  return status;
}

API int cudnnBackendGetAttribute(Descriptor *d, int name, int type, int64_t most, int64_t *count, void *elements) {
  if (!isThere(d) || !d->isFinal) return fail(NOT_FINALIZED, "an attribute is read of a descriptor that is not finalized");
  *count = 1;
  if (d->kind == PLAN && name == 402 && type == INT64) {
    *(int64_t *)elements = workspaceOf(d->part(401)->graph->part(801));
  } else if (d->kind == ENGINE && name == 1303 && type == NOTE) {
    ((int *)elements)[0] = 0;
    if (d->engine == DIFFERS) ((int *)elements)[1] = 4, *count = 2;
  } else if ((d->kind == HEURISTICS && name == 202) || (d->kind == CONFIG && name == 300)) {
    std::vector<int> engines = d->kind == CONFIG ? std::vector<int>{d->engine} : proposals(d);
    *count = engines.size();
    for (int64_t i = 0; i < most && i < *count; i++) {
      Descriptor *place = ((Descriptor **)elements)[i];
      if (!isThere(place) || place->kind != (d->kind == CONFIG ? ENGINE : CONFIG)) return fail(DESCRIPTOR_TYPE, "no descriptor to fill in");
      place->engine = engines[i];
      place->isFinal = true;
      if (d->kind == HEURISTICS) place->graph = d->part(201);
    }
    if (most > 0) *count = std::min(most, *count);
  } else {
    return fail(BAD_PARAM, "attribute " + std::to_string(name) + " cannot be read here");
  }
  return OK;
}

API int cudnnBackendExecute(Handle *handle, Descriptor *plan, Descriptor *pack) {
  if (!isThere(plan) || plan->kind != PLAN || !plan->isFinal || !isThere(pack) || pack->kind != PACK || !pack->isFinal) return fail(NOT_FINALIZED, "no plan or no variant pack");
  if (!handle->stream) return fail(BAD_PARAM, "the handle has no stream");
  const Descriptor *operation = plan->part(401)->graph->part(801);
  std::map<int64_t, char *> places;
  for (size_t i = 0; i < pack->values[1000].size(); i++)
    if (!places.emplace(pack->word(1000, i), (char *)pack->word(1001, i)).second) return fail(BAD_PARAM, "a unique id twice");
  int status = OK;
  std::set<int64_t> used;
  auto placed = [&](const Descriptor *of, int name) {
    Placed p{tensorOf(of->part(name)), nullptr};
    auto found = places.find(p.tensor.uid);
    if (found == places.end() || !found->second) status = fail(NULL_POINTER, "tensor " + std::to_string(p.tensor.uid) + " has no memory");
    else if ((uint64_t)found->second % p.tensor.alignment) status = fail(MISALIGNED, "tensor " + std::to_string(p.tensor.uid) + " is not aligned");
    else p.at = found->second;
    if (!used.insert(p.tensor.uid).second) status = fail(BAD_PARAM, "one unique id of two tensors");
    return p;
  };
  // Scalars are read while the call is enqueued.
  auto scalar = [&](const Descriptor *of, int name, double otherwise) {
    if (!of->has(name)) return otherwise;
    Placed p = placed(of, name);
    return p.at ? (p.tensor.type == 4 ? (double)*(int *)p.at : (double)*(float *)p.at) : NAN;
  };
  Attention a;
  bool back = a.isBackward = operation->kind == BACKWARD;
  a.q = placed(operation, back ? 2851 : 2800);
  a.k = placed(operation, back ? 2852 : 2801);
  a.v = placed(operation, back ? 2853 : 2802);
  a.o = placed(operation, back ? 2854 : 2803);
  a.lse = placed(operation, back ? 2855 : 2804);
  a.scale = scalar(operation, back ? 2856 : 2805, 1);
  if (back) a.dq = placed(operation, 2859), a.dk = placed(operation, 2860), a.dv = placed(operation, 2861), a.dO = placed(operation, 2862);
  if (const Descriptor *graph = operation->part(back ? 2867 : 2811)) {
    const Descriptor *mask = graph->part(801);
    a.isCausal = true;
    a.hidden = scalar(mask, 3005, 0);
    a.lengthK = (int64_t)scalar(mask, 3001, 0);
    a.lengthQ = (int64_t)scalar(mask, 3002, 0);
  }
  if (status != OK) return status;
  if (used.size() != places.size()) return fail(BAD_PARAM, "a tensor that the plan does not have");
  char *workspace = (char *)pack->word(1003);
  int64_t bytes = workspaceOf(operation);
  if (!workspace || (uint64_t)workspace % 256) return fail(MISALIGNED, "the workspace is missing or not aligned");
  std::function<void()> run = [=] {
    for (const Placed *p : {&a.q, &a.k, &a.v}) p->touch(false);
    twinTouch(workspace, bytes, true);
    memset(workspace, 0xff, bytes);
    if (back) {
      for (const Placed *p : {&a.o, &a.lse, &a.dO}) p->touch(false);
      for (const Placed *p : {&a.dq, &a.dk, &a.dv}) p->touch(true);
      backward(a);
    } else {
      for (const Placed *p : {&a.o, &a.lse}) p->touch(true);
      forward(a);
    }
  };
  twinEnqueue(handle->stream, back ? "attention backward by cuDNN" : "attention by cuDNN", &run);
  return OK;
}
