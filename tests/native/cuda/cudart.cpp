// A test double of the CUDA runtime: the C ABI of the functions that the library binds, on host memory. It proves nothing
// about a GPU's instructions; it shows what a kernel's indexing and the ordering of streams are.
//
// Streams: work is kept back until the host waits for it, and then runs in the order of events only, as late as it can be.
// Each operation has a vector clock (what it comes after, a count a stream), and each 4 bytes of device memory remember who
// wrote and who read them last. Reported: accesses that no path of events orders, within a launch those of threads that no
// barrier orders, memory used after it was freed, freed while in use, or outside of any block, and a wait for an event that
// was never recorded. Reports are kept for the test: twinReport(). Work may also say that it cannot end yet, as a collective does
// whose other ranks have not come: then its stream stays there, and whoever waits tries again.
//
// Graphs: see cudart_graphs.hpp.
//
// Kernels: one fibre a thread. g++ -fsanitize=thread makes each access call the hooks defined here.
#include <dlfcn.h>
#include <elf.h>
#include "cudart_graphs.hpp"
#include "cudart_warp.hpp"

// ---- What tests ask ----

/** The reports so far, a line each, which are forgotten then; of up to `room` bytes. All that was enqueued runs before. */
API int twinReport(char *text, u64 room) {
  LOCK;
  for (int i = 1; i < t.numStreams; i++) runAll(i, t.streams[i].clock.of[i]);
  std::string all;
  for (const std::string &line : t.reports) all += line + "\n";
  t.reports.clear();
  snprintf(text, room, "%s", all.c_str());
  return (int)all.size();
}
/**
 * What was enqueued since the last call, a line each: its stream, its number there, the numbers in streams 1, 2, … that it comes
 * after, its name.
 */
API int twinLog(char *text, u64 room) {
  LOCK;
  std::string all;
  for (size_t i = t.told; i < t.operations.size(); i++) {
    const Operation &o = t.operations[i];
    all += std::to_string(o.stream) + " " + std::to_string(o.index);
    for (int s = 1; s < STREAMS; s++) all += " " + std::to_string(o.clock.of[s]);
    all += " " + o.name + "\n";
  }
  t.told = t.operations.size();
  snprintf(text, room, "%s", all.c_str());
  return (int)all.size();
}
/** The order of threads and blocks: 0 ascending, 1 descending, 2 random. */
API int twinSetOrder(int order) {
  LOCK;
  t.order = order;
  return OK;
}
static int missing = 0;
/** What is not there: 0 nothing, 1 the driver, 2 a new driver, 3 the card. */
API int twinSetMissing(int what) { return missing = what, OK; }

// ---- The CUDA runtime ----

API const char *cudaGetErrorName(int status) {
  switch (status) {
    case OK: return "cudaSuccess";
    case INVALID_VALUE: return "cudaErrorInvalidValue";
    case MEMORY_ALLOCATION: return "cudaErrorMemoryAllocation";
    case NO_DEVICE: return "cudaErrorNoDevice";
    case INVALID_DEVICE: return "cudaErrorInvalidDevice";
    case INVALID_IMAGE: return "cudaErrorInvalidKernelImage";
    case NOT_FOUND: return "cudaErrorSymbolNotFound";
    case NOT_READY: return "cudaErrorNotReady";
    case CAPTURE_UNSUPPORTED: return "cudaErrorStreamCaptureUnsupported";
    case CAPTURE_INVALIDATED: return "cudaErrorStreamCaptureInvalidated";
    case CAPTURE_UNMATCHED: return "cudaErrorStreamCaptureUnmatched";
    case CAPTURE_UNJOINED: return "cudaErrorStreamCaptureUnjoined";
    case CAPTURE_ISOLATION: return "cudaErrorStreamCaptureIsolation";
    case CAPTURED_EVENT: return "cudaErrorCapturedEvent";
    default: return "cudaErrorUnknown";
  }
}
API const char *cudaGetErrorString(int) { return "said the test double"; }
API int cudaGetLastError() { return OK; }
API int cudaRuntimeGetVersion(int *v) { return *v = 13000, OK; }
API int cudaDriverGetVersion(int *v) { return *v = missing == 1 ? 0 : missing == 2 ? 12040 : 13000, OK; }
static int card = 0;
/** Cards that seem to be there; a process uses one of them. */
static int cards() {
  const char *number = getenv("TWIN_CARDS");
  return number ? atoi(number) : 1;
}
API int cudaGetDeviceCount(int *n) { return *n = cards(), missing == 3 ? NO_DEVICE : OK; }
API int cudaGetDevice(int *d) { return *d = card, OK; }
API int cudaSetDevice(int d) { return d >= 0 && d < cards() ? (card = d, OK) : INVALID_DEVICE; }
API int cudaDeviceGetAttribute(int *value, int which, int) {
  switch (which) {
    case 1: *value = 1024; break;       // threads a block
    case 16: *value = 4; break;         // multiprocessors
    case 75: *value = 9; break;         // compute capability
    case 76: *value = 0; break;
    case 97: *value = (int)SHARED_BYTES; break;
    case 115: *value = 1; break;        // memory pools
    default: return INVALID_VALUE;
  }
  return OK;
}
API int cudaDeviceGetPCIBusId(char *text, int room, int d) { return snprintf(text, room, "twin:%d", d), OK; }
API int cudaDeviceSynchronize() {
  LOCK;
  UNSAFE("cudaDeviceSynchronize");
  for (int i = 1; i < t.numStreams; i++) synchronize(t.streams[i]);
  return OK;
}
API int cudaDeviceCanAccessPeer(int *can, int, int) { return *can = 0, OK; }
API int cudaMalloc(void **p, u64 bytes) {
  LOCK;
  UNSAFE("cudaMalloc");
  return allocate(p, bytes, t.streams[0]);
}
API int cudaFree(void *p) {
  LOCK;
  if (!p) return OK;
  UNSAFE("cudaFree");
  for (int i = 1; i < t.numStreams; i++) synchronize(t.streams[i]);
  return release(p, t.streams[0]);
}
API int cudaMallocAsync(void **p, u64 bytes, void *s) {
  LOCK;
  return allocate(p, bytes, *(Stream *)s);
}
API int cudaFreeAsync(void *p, void *s) {
  LOCK;
  return release(p, *(Stream *)s);
}
API int cudaMemGetInfo(u64 *free, u64 *total) { return *free = ARENA - (1 << 20), *total = ARENA, OK; }
API int cudaDeviceGetDefaultMemPool(void **pool, int) { return *pool = (void *)8, OK; }
API int cudaMemPoolSetAttribute(void *, int, void *) { return OK; }
API int cudaMemPoolTrimTo(void *, u64) { return OK; }
/** Where pinned memory of the host begins, and its bytes. */
static std::map<u64, u64> pinned;
/** Whether all of it lies in one pinned piece. */
static bool isPinned(const void *p, u64 bytes) {
  auto after = pinned.upper_bound((u64)p);
  if (after == pinned.begin()) return false;
  auto [begin, length] = *std::prev(after);
  return (u64)p + bytes <= begin + length;
}
API int cudaHostAlloc(void **p, u64 bytes, unsigned) {
  LOCK;
  UNSAFE("cudaHostAlloc");
  *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return pinned[(u64)*p] = bytes, OK;
}
API int cudaFreeHost(void *p) {
  LOCK;
  return pinned.erase((u64)p), free(p), OK;
}
API int cudaHostRegister(void *p, u64 bytes, unsigned) {
  LOCK;
  UNSAFE("cudaHostRegister");
  if ((u64)p % 4096 || isPinned(p, 1)) return INVALID_VALUE;
  if (getenv("TWIN_UNPINNABLE")) return MEMORY_ALLOCATION;
  return pinned[(u64)p] = bytes, OK;
}
API int cudaHostUnregister(void *p) {
  LOCK;
  return pinned.erase((u64)p) ? OK : INVALID_VALUE;
}
API int cudaMemcpyAsync(void *to, const void *from, u64 bytes, int kind, void *s) {
  LOCK;
  if (kind < 1 || kind > 4) return INVALID_VALUE;
  // Of other memory a copy would not go on beside the host.
  if ((kind == 1 && !isPinned(from, bytes)) || (kind == 2 && !isPinned(to, bytes))) return INVALID_VALUE;
  enqueue(*(Stream *)s, "copy", [=] {
    twinTouch(from, bytes, false);
    twinTouch(to, bytes, true);
    memmove(to, from, bytes);
  });
  return OK;
}
API int cudaMemsetAsync(void *p, int value, u64 bytes, void *s) {
  LOCK;
  enqueue(*(Stream *)s, "memset", [=] {
    twinTouch(p, bytes, true);
    memset(p, value, bytes);
  });
  return OK;
}
API int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -5, OK; }
API int cudaStreamCreateWithPriority(void **s, unsigned, int) {
  LOCK;
  // Streams of devices that were closed are taken again.
  static int taken = 0;
  int number = 1 + taken++ % REAL;
  if (number >= t.numStreams) t.numStreams = number + 1;
  *s = &t.streams[number];
  return OK;
}
API int cudaStreamDestroy(void *) { return OK; }
API int cudaStreamSynchronize(void *s) {
  LOCK;
  UNSAFE("cudaStreamSynchronize");
  synchronize(*(Stream *)s);
  return OK;
}
API int cudaStreamQuery(void *s) {
  LOCK;
  UNSAFE("cudaStreamQuery");
  return ((Stream *)s)->queue.empty() ? OK : NOT_READY;
}
API int cudaStreamWaitEvent(void *stream, void *event, unsigned) {
  LOCK;
  Stream &s = *(Stream *)stream;
  Event &e = *(Event *)event;
  if (!e.recorded) {
    report("stream " + std::to_string(s.number) + " waits for an event that was never recorded");
    return OK;
  }
  if (e.capture) {
    if (!t.capture || t.capture->id != e.capture)
      return refuseInCapture("stream " + std::to_string(s.number) + " waits for an event of a capture that has ended", CAPTURED_EVENT);
    if (!s.capture) s.captured = {}; // it joins
    s.capture = t.capture;
    join(s.captured, e.clock);
    return OK;
  }
  if (s.capture)
    return refuseInCapture("stream " + std::to_string(s.number) + " waits in a capture for an event from before it", CAPTURE_ISOLATION);
  join(s.clock, e.clock);
  s.clock.of[s.number]++;
  s.queue.push_back({s.clock.of[s.number], 0, nullptr, e.stream, e.index});
  return OK;
}
API int cudaEventCreateWithFlags(void **e, unsigned) { return *e = new Event, OK; }
API int cudaEventDestroy(void *e) { return delete (Event *)e, OK; }
API int cudaEventRecord(void *event, void *stream) {
  LOCK;
  Stream &s = *(Stream *)stream;
  if (s.capture) *(Event *)event = Event{true, s.captured, s.number, 0, s.capture->id};
  else *(Event *)event = Event{true, s.clock, s.number, s.clock.of[s.number], 0};
  return OK;
}
static bool hasCome(const Event &e) {
  const Stream &s = twin().streams[e.stream];
  return s.queue.empty() || s.queue.front().index > e.index;
}
API int cudaEventQuery(void *event) {
  LOCK;
  UNSAFE("cudaEventQuery");
  Event &e = *(Event *)event;
  if (e.capture) return refuseInCapture("the host asks for an event of a capture", CAPTURED_EVENT);
  // Whoever asks again and again sees work go on, faster and faster.
  static u32 asked = 0, atOperation = 0;
  asked = atOperation == t.operations.size() && asked < 1u << 20 ? asked * 2 : 1;
  atOperation = (u32)t.operations.size();
  if (!hasCome(e)) {
    u32 front = t.streams[e.stream].queue.front().index;
    runUntil(e.stream, e.index - front < asked ? e.index : front + asked - 1);
    return NOT_READY;
  }
  hostWaits(e.clock);
  return OK;
}
API int cudaEventSynchronize(void *event) {
  LOCK;
  UNSAFE("cudaEventSynchronize");
  Event &e = *(Event *)event;
  if (e.capture) return refuseInCapture("the host waits for an event of a capture", CAPTURED_EVENT);
  runAll(e.stream, e.index);
  hostWaits(e.clock);
  return OK;
}
API int cudaEventElapsedTime(float *ms, void *, void *) { return *ms = 1, OK; }

struct Library { void *handle; };
struct Kernel { std::string name; void (*entry)(void *); size_t bytes; u64 mostDynamic = 48 * 1024; };
API int cudaLibraryLoadData(void **library, const u8 *code, void *, void *, unsigned, void *, void *, unsigned) {
  LOCK;
  UNSAFE("cudaLibraryLoadData");
  const Elf64_Ehdr *elf = (const Elf64_Ehdr *)code;
  if (memcmp(code, ELFMAG, 4)) return INVALID_IMAGE;
  size_t bytes = elf->e_shoff + (size_t)elf->e_shnum * elf->e_shentsize;
  char path[] = "/tmp/fullyshard-twin-XXXXXX";
  int fd = mkstemp(path);
  if (fd < 0 || write(fd, code, bytes) != (ssize_t)bytes) return INVALID_IMAGE;
  close(fd);
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) fprintf(stderr, "twin: %s\n", dlerror());
  unlink(path);
  if (!handle) return INVALID_IMAGE;
  *library = new Library{handle};
  return OK;
}
API int cudaLibraryUnload(void *library) { return delete (Library *)library, OK; }
API int cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
  void *handle = ((Library *)library)->handle;
  auto entry = (void (*)(void *))dlsym(handle, (std::string("twin_") + name).c_str());
  auto bytes = (size_t *)dlsym(handle, (std::string("twinBytes_") + name).c_str());
  if (!entry || !bytes) return NOT_FOUND;
  *kernel = new Kernel{name, entry, *bytes};
  return OK;
}
/** What a block may have besides static shared memory, if it is asked for: attribute 8. */
API int cudaKernelSetAttributeForDevice(void *kernel, int which, int value, int) {
  if (which == 8 && (value < 0 || (size_t)value > SHARED_BYTES)) return INVALID_VALUE;
  if (which == 8) ((Kernel *)kernel)->mostDynamic = (u64)value;
  return OK;
}
API int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void *, int, u64) { return *n = 2, OK; }
struct LaunchConfig { dim3 grid, block; u64 dynamicBytes; void *stream, *attributes; unsigned count; };
API int cudaLaunchKernelExC(const LaunchConfig *config, const void *kernel, void **args) {
  LOCK;
  const Kernel *k = (const Kernel *)kernel;
  LaunchConfig c = *config;
  if (c.grid.x == 0 || c.grid.y != 1 || c.grid.z != 1 || c.block.x == 0 || c.block.x > 1024) return INVALID_VALUE;
  if (c.dynamicBytes > k->mostDynamic) return INVALID_VALUE;
  std::vector<u8> copy((u8 *)args[0], (u8 *)args[0] + k->bytes);
  enqueue(*(Stream *)c.stream, k->name, [=]() mutable { launch(k->name, k->entry, copy.data(), c.grid, c.block, c.dynamicBytes); });
  return OK;
}
#define NOT_MODELLED(name) API int name() { return report(#name " is not modelled"), 801; }
NOT_MODELLED(cudaDeviceEnablePeerAccess) NOT_MODELLED(cudaDeviceDisablePeerAccess) NOT_MODELLED(cudaMemPoolGetAttribute)
NOT_MODELLED(cudaMemcpy2DAsync) NOT_MODELLED(cudaMemcpyPeerAsync)
NOT_MODELLED(cudaGraphExecUpdate) NOT_MODELLED(cudaGraphGetNodes) NOT_MODELLED(cudaThreadExchangeStreamCaptureMode)
