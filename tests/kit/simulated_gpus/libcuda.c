// A libcuda.so.1 that answers as a driver: SIMULATED_CUDA_DRIVER is its newest CUDA version (12040), SIMULATED_CUDA_INIT an error.
#include <stdlib.h>
static int read_number(const char* name, int otherwise) { const char* text = getenv(name); return text ? atoi(text) : otherwise; }
int cuDriverGetVersion(int* version) { *version = read_number("SIMULATED_CUDA_DRIVER", 13000); return 0; }
int cuInit(unsigned flags) { (void)flags; return read_number("SIMULATED_CUDA_INIT", 0); }
int cuDeviceGetCount(int* count) { *count = read_number("SIMULATED_GPUS", 2); return 0; }
int cuGetErrorString(int error, const char** text) { *text = error == 802 ? "system not yet initialized" : "unknown error"; return 0; }
