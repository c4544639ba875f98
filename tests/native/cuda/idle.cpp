// A test double of the CUDA runtime, NVRTC, cuBLASLt and NCCL in one library, on which nothing runs: each call returns at once and
// counts itself. It tells what a step costs the host. Addresses of device memory are numbers behind which there is nothing, so a
// model of any size fits; what the host reads from there is zeros.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unordered_map>
#include <vector>
#define API extern "C" __attribute__((visibility("default")))

typedef uint64_t u64;
enum Count { LAUNCHES, PRODUCTS, COLLECTIVES, COPIES, ALLOCATIONS, FREES, RECORDS, WAITS, GRAPHS, COUNTS };
static u64 counts[COUNTS];
static int counted(Count which) { return counts[which]++, 0; }
/** Calls since the last time, in the order of `Count`; they are counted anew then. */
API void idleCounts(u64 *to) {
  memcpy(to, counts, sizeof counts);
  memset(counts, 0, sizeof counts);
}
#define NOTHING(name) API int name() { return 0; }
static void *const SOMETHING = (void *)8;

// ---- The CUDA runtime ----

static std::unordered_map<u64, std::vector<u64>> idle; // addresses by size
static std::unordered_map<u64, u64> sizes;
static u64 top = 1ull << 40;
static int allocate(u64 *p, u64 bytes) {
  if (bytes == 0) return 1;
  u64 room = (bytes + 511) / 512 * 512;
  std::vector<u64> &free = idle[room];
  if (free.empty()) *p = top, top += room;
  else *p = free.back(), free.pop_back();
  sizes[*p] = room;
  return counted(ALLOCATIONS);
}
static int release(u64 p) {
  auto found = sizes.find(p);
  if (found == sizes.end()) return 1;
  idle[found->second].push_back(p);
  sizes.erase(found);
  return counted(FREES);
}
API const char *cudaGetErrorName(int) { return "cudaErrorInvalidValue"; }
API const char *cudaGetErrorString(int) { return "said the idle test double"; }
API int cudaRuntimeGetVersion(int *v) { return *v = 13000, 0; }
API int cudaDriverGetVersion(int *v) { return *v = 13000, 0; }
API int cudaGetDeviceCount(int *n) { return *n = 1, 0; }
API int cudaGetDevice(int *d) { return *d = 0, 0; }
API int cudaDeviceGetAttribute(int *value, int which, int) { return *value = which == 75 ? 9 : which == 76 ? 0 : 1024, 0; }
API int cudaDeviceGetPCIBusId(char *text, int room, int) { return snprintf(text, (size_t)room, "idle"), 0; }
API int cudaDeviceCanAccessPeer(int *can, int, int) { return *can = 0, 0; }
API int cudaMalloc(u64 *p, u64 bytes) { return allocate(p, bytes); }
API int cudaMallocAsync(u64 *p, u64 bytes, void *) { return allocate(p, bytes); }
API int cudaFree(u64 p) { return p ? release(p) : 0; }
API int cudaFreeAsync(u64 p, void *) { return release(p); }
API int cudaMemGetInfo(u64 *free, u64 *total) { return *free = *total = 80ull << 30, 0; }
API int cudaDeviceGetDefaultMemPool(void **pool, int) { return *pool = SOMETHING, 0; }
API int cudaHostAlloc(void **p, u64 bytes, unsigned) { return *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096), 0; }
API int cudaFreeHost(void *p) { return free(p), 0; }
API int cudaMemcpyAsync(void *to, const void *, u64 bytes, int kind, void *) {
  if (kind == 2) memset(to, 0, bytes);
  return counted(COPIES);
}
API int cudaMemsetAsync(void *, int, u64, void *) { return counted(COPIES); }
API int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -5, 0; }
API int cudaStreamCreateWithPriority(void **s, unsigned, int) { return *s = SOMETHING, 0; }
API int cudaStreamWaitEvent(void *, void *, unsigned) { return counted(WAITS); }
API int cudaEventCreateWithFlags(void **e, unsigned) { return *e = SOMETHING, 0; }
API int cudaEventRecord(void *, void *) { return counted(RECORDS); }
API int cudaEventElapsedTime(float *ms, void *, void *) { return *ms = 0, 0; }
API int cudaLibraryLoadData(void **library, const void *, void *, void *, unsigned, void *, void *, unsigned) {
  return *library = SOMETHING, 0;
}
API int cudaLibraryGetKernel(void **kernel, void *, const char *) { return *kernel = SOMETHING, 0; }
API int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void *, int, u64) { return *n = 2, 0; }
struct LaunchConfig { unsigned gridX, gridY, gridZ, blockX, blockY, blockZ; u64 dynamicBytes; void *stream; };
API int cudaLaunchKernelExC(const LaunchConfig *c, const void *kernel, void **args) {
  bool isRight = c->gridX && c->gridY == 1 && c->gridZ == 1 && c->blockX && c->stream && kernel && args && args[0];
  return isRight ? counted(LAUNCHES) : 1;
}
API int cudaStreamEndCapture(void *, void **graph) { return *graph = SOMETHING, 0; }
API int cudaGraphInstantiate(void **exec, void *, u64) { return *exec = SOMETHING, 0; }
API int cudaGraphLaunch(void *, void *) { return counted(GRAPHS); }
NOTHING(cudaStreamBeginCapture) NOTHING(cudaGraphDestroy) NOTHING(cudaGraphExecDestroy)
NOTHING(cudaGetLastError) NOTHING(cudaSetDevice) NOTHING(cudaDeviceSynchronize) NOTHING(cudaMemPoolSetAttribute)
NOTHING(cudaMemPoolTrimTo) NOTHING(cudaStreamDestroy) NOTHING(cudaStreamSynchronize) NOTHING(cudaStreamQuery)
NOTHING(cudaEventDestroy) NOTHING(cudaEventQuery) NOTHING(cudaEventSynchronize) NOTHING(cudaLibraryUnload)
NOTHING(cudaKernelSetAttributeForDevice)

// ---- NVRTC ----

API const char *nvrtcGetErrorString(int) { return "said the idle test double"; }
API int nvrtcVersion(int *major, int *minor) { return *major = 13, *minor = 0, 0; }
API int nvrtcGetNumSupportedArchs(int *n) { return *n = 1, 0; }
API int nvrtcGetSupportedArchs(int *list) { return *list = 90, 0; }
API int nvrtcCreateProgram(void **program, const char *, const char *, int, const char *const *, const char *const *) {
  return *program = SOMETHING, 0;
}
API int nvrtcGetProgramLogSize(void *, u64 *n) { return *n = 1, 0; }
API int nvrtcGetProgramLog(void *, char *text) { return *text = 0, 0; }
API int nvrtcGetCUBINSize(void *, u64 *n) { return *n = 1, 0; }
NOTHING(nvrtcDestroyProgram) NOTHING(nvrtcCompileProgram) NOTHING(nvrtcGetCUBIN)

// ---- cuBLASLt ----

API const char *cublasLtGetStatusName(int) { return "CUBLAS_STATUS_INVALID_VALUE"; }
API const char *cublasLtGetStatusString(int) { return "said the idle test double"; }
API u64 cublasLtGetVersion() { return 130000; }
API u64 cublasLtGetCudartVersion() { return 13000; }
API int cublasLtCreate(void **h) { return *h = SOMETHING, 0; }
API int cublasLtMatmulDescCreate(void **d, int, int) { return *d = SOMETHING, 0; }
API int cublasLtMatrixLayoutCreate(void **l, int, u64, u64, int64_t) { return *l = SOMETHING, 0; }
API int cublasLtMatmulPreferenceCreate(void **p) { return *p = SOMETHING, 0; }
API int cublasLtMatmulAlgoGetHeuristic(void *, void *, void *, void *, void *, void *, void *, int, char *results, int *n) {
  return memset(results, 0, 96), *n = 1, 0;
}
API int cublasLtMatmul() { return counted(PRODUCTS); }
NOTHING(cublasLtDestroy) NOTHING(cublasLtMatmulDescSetAttribute) NOTHING(cublasLtMatmulDescDestroy)
NOTHING(cublasLtMatrixLayoutSetAttribute) NOTHING(cublasLtMatrixLayoutDestroy) NOTHING(cublasLtMatmulPreferenceSetAttribute)
NOTHING(cublasLtMatmulPreferenceDestroy)

// ---- NCCL ----

API const char *ncclGetErrorString(int) { return "said the idle test double"; }
API const char *ncclGetLastError(void *) { return ""; }
API int ncclGetVersion(int *version) { return *version = 22809, 0; }
API int ncclGetUniqueId(char *id) { return memset(id, 1, 128), 0; }
API int ncclCommInitRankScalable(void **comm, int, int, int, const char *, const void *) { return *comm = SOMETHING, 0; }
API int ncclCommSplit(void *, int, int, void **comm, const void *) { return *comm = SOMETHING, 0; }
API int ncclCommGetAsyncError(void *, int *state) { return *state = 0, 0; }
API int ncclAllReduce() { return counted(COLLECTIVES); }
API int ncclReduceScatter() { return counted(COLLECTIVES); }
API int ncclAllGather() { return counted(COLLECTIVES); }
API int ncclBroadcast() { return counted(COLLECTIVES); }
API int ncclReduce() { return counted(COLLECTIVES); }
API int ncclSend() { return counted(COLLECTIVES); }
API int ncclRecv() { return counted(COLLECTIVES); }
NOTHING(ncclCommFinalize) NOTHING(ncclCommDestroy) NOTHING(ncclCommAbort) NOTHING(ncclGroupStart) NOTHING(ncclGroupEnd)

#define NOT_MODELLED(name) API int name() { return 801; }
NOT_MODELLED(cudaDeviceEnablePeerAccess) NOT_MODELLED(cudaDeviceDisablePeerAccess) NOT_MODELLED(cudaMemPoolGetAttribute)
NOT_MODELLED(cudaHostRegister) NOT_MODELLED(cudaHostUnregister) NOT_MODELLED(cudaMemcpy2DAsync) NOT_MODELLED(cudaMemcpyPeerAsync)
NOT_MODELLED(cudaStreamIsCapturing) NOT_MODELLED(cudaThreadExchangeStreamCaptureMode) NOT_MODELLED(cudaGraphExecUpdate)
NOT_MODELLED(cudaGraphGetNodes) NOT_MODELLED(cudaGraphUpload) NOT_MODELLED(ncclCommInitRankConfig) NOT_MODELLED(ncclCommInitRank)
NOT_MODELLED(ncclCommCount) NOT_MODELLED(ncclCommUserRank) NOT_MODELLED(ncclCommCuDevice) NOT_MODELLED(ncclMemAlloc)
NOT_MODELLED(ncclMemFree) NOT_MODELLED(ncclRedOpCreatePreMulSum) NOT_MODELLED(ncclRedOpDestroy)
