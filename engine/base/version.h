// Version information. The build system defines TANDEM_COMMIT etc.; empty if it does not.
#pragma once

#ifndef TANDEM_VERSION
#define TANDEM_VERSION "0.1.0"
#endif
#ifndef TANDEM_COMMIT
#define TANDEM_COMMIT ""
#endif
#ifndef TANDEM_TORCH_VERSION
#define TANDEM_TORCH_VERSION ""
#endif
#ifndef TANDEM_CUDA_VERSION
#define TANDEM_CUDA_VERSION ""
#endif

namespace tandem {

inline constexpr char kVersion[] = TANDEM_VERSION;
inline constexpr char kCommit[] = TANDEM_COMMIT;               // short git hash
inline constexpr char kTorchVersion[] = TANDEM_TORCH_VERSION;  // empty: built without LibTorch
inline constexpr char kCudaVersion[] = TANDEM_CUDA_VERSION;    // empty: built without CUDA

}  // namespace tandem
