#include "engine/backend/torch/caught.h"

#include <c10/util/Exception.h>

#include <exception>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

// Codes of cudaError_t (CUDA 13's driver_types.h), for builds without CUDA's headers.
constexpr int kMemoryAllocation = 2;

// After these errors every call fails until the process ends, or there is no device.
bool loses_device(int code) {
  switch (code) {
    case 46:   // cudaErrorDevicesUnavailable
    case 100:  // cudaErrorNoDevice
    case 101:  // cudaErrorInvalidDevice
    case 209:  // cudaErrorNoKernelImageForDevice
    case 214:  // cudaErrorECCUncorrectable
    case 220:  // cudaErrorNvlinkUncorrectable
    case 700:  // cudaErrorIllegalAddress
    case 702:  // cudaErrorLaunchTimeout
    case 709:  // cudaErrorContextIsDestroyed
    case 710:  // cudaErrorAssert
    case 714:  // cudaErrorHardwareStackError
    case 715:  // cudaErrorIllegalInstruction
    case 716:  // cudaErrorMisalignedAddress
    case 717:  // cudaErrorInvalidAddressSpace
    case 718:  // cudaErrorInvalidPc
    case 719:  // cudaErrorLaunchFailure
    case 721:  // cudaErrorTensorMemoryLeak
    case 999:  // cudaErrorUnknown
      return true;
    default:
      return false;
  }
}

// Recognizes shortages without an own type or code by their text: those of the host's allocator,
// and of cuBLAS, which cannot make its handle either when memory is short.
bool is_shortage(const std::string& what) {
  for (const char* words : {"not enough memory", "allocate memory", "CUBLAS_STATUS_ALLOC_FAILED",
                            "CUBLAS_STATUS_NOT_INITIALIZED"}) {
    if (what.find(words) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

absl::Status caught(absl::string_view doing) {
  try {
    throw;
  } catch (const c10::OutOfMemoryError& e) {
    return absl::ResourceExhaustedError(absl::StrCat(doing, ": ", e.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(doing, ": out of memory"));
  } catch (const c10::AcceleratorError& e) {
    const std::string what = absl::StrCat(doing, ": ", e.what_without_backtrace());
    if (e.get_error_code() == kMemoryAllocation) return absl::ResourceExhaustedError(what);
    return loses_device(e.get_error_code()) ? absl::UnavailableError(what)
                                            : absl::InternalError(what);
  } catch (const c10::Error& e) {
    const std::string what = absl::StrCat(doing, ": ", e.what_without_backtrace());
    return is_shortage(what) ? absl::ResourceExhaustedError(what) : absl::InternalError(what);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat(doing, ": ", e.what()));
  }
}

}  // namespace tandem
