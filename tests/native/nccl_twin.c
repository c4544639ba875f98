/* A test double of the parts of NCCL, CUDA and cuBLASLt whose calling conventions and structs are the hard ones. Built by
 * the tests with gcc; what it is given it writes down, or hashes, for the test to compare. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct { char internal[128]; } ncclUniqueId;

typedef struct {
  size_t size;
  unsigned magic, version;
  int blocking, cgaClusterSize, minCTAs, maxCTAs;
  const char *netName;
  int splitShare;
} ncclConfig_v22304;

static uint64_t hash(const void *bytes, size_t length) {
  uint64_t value = 14695981039346656037u;
  for (size_t i = 0; i < length; i++) value = (value ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
  return value;
}

/* What the caller gets as its communicator: all that it passed, in one number of 47 bits, as an address has. */
static void *digest(const ncclUniqueId *id, int nranks, int rank, const ncclConfig_v22304 *config) {
  uint64_t parts[4] = {hash(id, sizeof *id), (uint64_t)nranks, (uint64_t)rank, config ? hash(config, config->size) : 0};
  return (void *)(hash(parts, sizeof parts) >> 17);
}

int ncclCommInitRank(void **comm, int nranks, ncclUniqueId id, int rank) {
  *comm = digest(&id, nranks, rank, NULL);
  memset(&id, 0xff, sizeof id); /* the callee owns its copy: the caller's must not change */
  return 0;
}

int ncclCommInitRankConfig(void **comm, int nranks, ncclUniqueId id, int rank, ncclConfig_v22304 *config) {
  *comm = digest(&id, nranks, rank, config);
  return 0;
}

int ncclCommInitRankScalable(
    void **comm, int nranks, int rank, int count, ncclUniqueId *ids, ncclConfig_v22304 *config) {
  *comm = digest(&ids[count - 1], nranks, rank, config);
  return 0;
}

/* A failure with a text for its status and for the last error, and statuses that are no failures. */
int ncclCommGetAsyncError(void *comm, int *status) {
  *status = 7;
  return comm == NULL ? 4 : 0;
}
int ncclGroupEnd(void) { return 7; }
const char *ncclGetErrorString(int status) { return status == 4 ? "invalid argument" : "another"; }
const char *ncclGetLastError(void *comm) { return comm == NULL ? "comm is NULL, said the twin\n" : NULL; }

/* Every kind of argument, and more of them than there are registers. */
typedef struct { unsigned x, y, z; } dim3;
typedef struct {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  void *stream, *attrs;
  unsigned numAttrs;
} cudaLaunchConfig_t;

int cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args) {
  /* a kernel of (float *out, uint32_t count, float scale) that writes what it was launched with */
  double *out = *(double **)args[0];
  out[0] = *(uint32_t *)args[1];
  out[1] = *(float *)args[2];
  out[2] = config->gridDim.x * 1e4 + config->gridDim.y * 1e2 + config->gridDim.z;
  out[3] = config->blockDim.x * 1e4 + config->blockDim.y * 1e2 + config->blockDim.z;
  out[4] = (double)config->dynamicSmemBytes;
  out[5] = (double)(uintptr_t)config->stream - (double)(uintptr_t)kernel;
  out[6] = config->attrs ? *(int *)((char *)config->attrs + 8) : -1;
  out[7] = config->numAttrs;
  return 0;
}

int cublasLtMatmul(
    void *handle, void *desc, const void *alpha, const void *a, void *adesc, const void *b, void *bdesc,
    const void *beta, const void *c, void *cdesc, void *d, void *ddesc, const void *algo, void *workspace,
    size_t workspaceSize, void *stream) {
  uintptr_t places[] = {
      (uintptr_t)handle, (uintptr_t)desc, (uintptr_t)a, (uintptr_t)adesc, (uintptr_t)b, (uintptr_t)bdesc, (uintptr_t)c,
      (uintptr_t)cdesc, (uintptr_t)d, (uintptr_t)ddesc, (uintptr_t)workspace, workspaceSize, (uintptr_t)stream};
  for (size_t i = 1; i < sizeof places / sizeof *places; i++)
    if (places[i] != places[0] + i) return 7; /* CUBLAS_STATUS_INVALID_VALUE */
  return *(const float *)alpha == 1.5f && *(const float *)beta == 0.25f && ((const char *)algo)[63] == 9 ? 0 : 7;
}
