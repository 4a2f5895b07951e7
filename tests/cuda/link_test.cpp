// Reports whether LibTorch's CUDA part is linked and whether there is a GPU. Fails only if the two
// answers contradict each other.
#include <ATen/Context.h>
#include <cuda_runtime_api.h>

#include <cstdio>

namespace tandem {
bool doubled_on_device(int count);  // link_test.cu
}

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) devices = 0;
  const bool usable = at::hasCUDA();
  std::printf("torch sees CUDA: %s, devices: %d\n", usable ? "yes" : "no", devices);
  if (devices == 0) return usable ? 1 : 0;
  return usable && tandem::doubled_on_device(1000) ? 0 : 1;
}
