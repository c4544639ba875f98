// A part of nccl.cpp: memory that the ranks of a communicator register with each other. An all-gather between such memory goes by
// copy engines if the communicator has the zero-CTA policy, which the operation's name tells; bytes take the same way here.
// A registration is in progress until every rank has made its own. Found: unequal sizes, memory that is not NCCL's or does not
// begin on 4096 bytes, a registration in a capture, ranks that name different places of windows, where it is told to a zero-CTA
// gather of which one side alone is registered, work that uses a window which was deregistered, memory freed while it is registered, and windows that a
// communicator still has when it is destroyed.
#pragma once
#include <map>

API int cudaMalloc(void **p, u64 bytes);
API int cudaFree(void *p);

/** What ncclMemAlloc gave, by where it begins: its bytes, and what the double of the runtime calls it. */
struct Memory { u64 bytes; void *block; };
static std::map<const u8 *, Memory> &memories() {
  static auto *the = new std::map<const u8 *, Memory>;
  return *the;
}
static const u64 WINDOW_ALIGNMENT = 4096;

static std::string nameOf(Comm *c, const Window *window) {
  return "window " + std::to_string(window->number) + " of rank " + std::to_string(c->rank);
}
static Place placeOf(Comm *c, const void *p) {
  const u8 *at = (const u8 *)p;
  for (Window *window : c->windows)
    if (window->isRegistered && at >= window->begin && at < window->begin + window->bytes)
      return {window->number, (u64)(at - window->begin)};
  return {0, 0};
}
/** Whether a zero-CTA gather of which one side alone is registered is a fault: NCCL would take kernels for it, and say nothing. */
static bool isStrict = getenv("TWIN_STRICT_WINDOWS") != nullptr;
API int twinStrictWindows(int is) { return isStrict = is, OK; }
/** How a collective goes, in words. */
static const char *wayOf(Comm *c, const Call &call, const char *kind) {
  if (strcmp(kind, "all-gather")) return kind;
  if (isStrict && c->policy == 2 && !call.from.window != !call.to.window) {
    std::string where = call.from.window ? "destination" : "source";
    twinReportFault(("rank " + std::to_string(c->rank) + " gathers with the zero-CTA policy, and the " + where + " is not registered").c_str());
  }
  if (!call.from.window || !call.to.window) return kind;
  return c->policy == 2 ? "all-gather by copy engines" : "all-gather by symmetric kernels";
}
/** Work is between windows that are still registered. */
static void requireRegistered(Comm *c, const Call &call) {
  for (Window *window : c->windows)
    if (!window->isRegistered && (window->number == call.from.window || window->number == call.to.window))
      twinReportFault((std::string(call.kind) + " uses " + nameOf(c, window) + ", which was deregistered").c_str());
}

static int setError(Comm *c, const std::string &text);
/** Ends a registration that all ranks have made. */
static void goOnRegistering(Comm *c) {
  Window *window = c->registering;
  for (int r = 0; r < c->ranks; r++)
    if (c->shared->peers[r].registered < window->number) return (void)(c->missing = r);
  c->missing = -1;
  for (int r = 0; r < c->ranks; r++) {
    // A rank that has gone on to the next one has found no difference.
    u64 other = c->shared->peers[r].registeredBytes;
    if (c->shared->peers[r].registered != window->number || other == window->bytes) continue;
    setError(c, "window " + std::to_string(window->number) + ": rank " + std::to_string(c->rank) + " registers " +
                    std::to_string(window->bytes) + " bytes, rank " + std::to_string(r) + " " + std::to_string(other));
    return;
  }
  c->windows.push_back(window);
  *c->registeringTo = window;
  c->registering = nullptr;
}

API int ncclMemAlloc(void **p, u64 bytes) {
  void *block;
  if (cudaMalloc(&block, bytes + WINDOW_ALIGNMENT)) return fail(1, "no memory");
  LOCK;
  u8 *begin = (u8 *)(((u64)block + WINDOW_ALIGNMENT - 1) / WINDOW_ALIGNMENT * WINDOW_ALIGNMENT);
  memories()[begin] = {bytes, block};
  return *p = begin, OK;
}
API int ncclMemFree(void *p) {
  void *block;
  {
    LOCK;
    auto it = memories().find((u8 *)p);
    if (it == memories().end()) return fail(INVALID_ARGUMENT, "memory is freed that ncclMemAlloc did not give, or freed already");
    for (Comm *c : comms())
      for (Window *window : c->windows)
        if (window->isRegistered && window->begin >= it->first && window->begin < it->first + it->second.bytes)
          twinReportFault((nameOf(c, window) + " is registered when its memory is freed").c_str());
    block = it->second.block;
    memories().erase(it);
  }
  return cudaFree(block) ? fail(1, "not freed") : OK;
}
API int ncclCommWindowRegister(Comm *c, void *p, u64 bytes, Window **window, int flags) {
  LOCK;
  if (version() < 22700) return fail(INVALID_USAGE, "this release has no windows");
  if (twinIsCapturing()) {
    twinReportFault("memory is registered while work is captured");
    return fail(INVALID_USAGE, "a registration in a capture");
  }
  if (c->state != OK || c->isBusy || c->registering) return refuse(c, "a registration while a call is in progress");
  *window = nullptr;
  if (getenv("TWIN_NO_WINDOWS")) return OK;
  auto it = memories().upper_bound((u8 *)p);
  bool isKnown = it != memories().begin() && (u8 *)p + bytes <= std::prev(it)->first + std::prev(it)->second.bytes;
  if (flags != 1 || !isKnown) return fail(INVALID_USAGE, "memory is registered that ncclMemAlloc did not give");
  if ((u64)p % WINDOW_ALIGNMENT) return fail(INVALID_ARGUMENT, "a window that does not begin on a multiple of 4096");
  c->registering = new Window{++c->registrations, (u8 *)p, bytes};
  c->registeringTo = window;
  c->own().registeredBytes = bytes;
  c->own().registered = c->registrations;
  return IN_PROGRESS;
}
API int ncclCommWindowDeregister(Comm *c, Window *window) {
  LOCK;
  if (std::find(c->windows.begin(), c->windows.end(), window) == c->windows.end() || !window->isRegistered)
    return fail(INVALID_ARGUMENT, "a window is deregistered that is not registered");
  window->isRegistered = false;
  return OK;
}
/** Windows, and pieces of memory that ncclMemAlloc gave, of this process. */
API int twinNcclMemory() {
  LOCK;
  int count = (int)memories().size();
  for (Comm *c : comms())
    for (Window *window : c->windows) count += window->isRegistered;
  return count;
}
