// A stand-in for NVIDIA's driver where there is none, with which cuDNN plans for cards that it is told of: its engines are
// linked to the driver, and load what they have compiled. Nothing runs.
#define NO_DEVICE 100
#define REFUSE(name) int name(void) { return NO_DEVICE; }
#define ACCEPT(name) int name(void) { return 0; }
#define GIVE(name) int name(void **place) { return *place = (void *)16, 0; }

REFUSE(cuGetErrorName) REFUSE(cuGetErrorString) REFUSE(cuDeviceGet) REFUSE(cuDeviceGetCount)
REFUSE(cuModuleLoadData) REFUSE(cuModuleGetFunction) REFUSE(cuLibraryLoadFromFile)
REFUSE(cuLinkCreate) REFUSE(cuLinkAddData) REFUSE(cuLinkComplete)
REFUSE(cuTensorMapEncodeTiled) REFUSE(cuTensorMapEncodeIm2col) REFUSE(cuOccupancyMaxPotentialClusterSize)
REFUSE(cuLaunchKernel) REFUSE(cuLaunchKernelEx) REFUSE(cuLaunchCooperativeKernel)
REFUSE(cuStreamGetCtx) REFUSE(cuCtxGetLimit)
ACCEPT(cuCtxPushCurrent) ACCEPT(cuCtxPopCurrent) ACCEPT(cuLinkDestroy) ACCEPT(cuModuleUnload)
ACCEPT(cuLibraryUnload) ACCEPT(cuKernelSetAttribute)
GIVE(cuCtxGetCurrent) GIVE(cuLibraryLoadData) GIVE(cuLibraryGetKernel) GIVE(cuKernelGetFunction)
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuKernelGetAttribute(int *value) { return *value = 0, 0; }
