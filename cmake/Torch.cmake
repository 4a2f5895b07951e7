# LibTorch of the Python wheel: imported targets torch::c10, torch::torch_cpu and, with CUDA, torch::c10_cuda, torch::torch_cuda.
# find_package(Torch) is not used: it adds a protobuf target, macros for half operators and the CUDA language.
if(NOT TANDEM_TORCH_ROOT)
  set(TANDEM_TORCH_ROOT ${TANDEM_SITE_PACKAGES}/torch)
endif()
if(NOT EXISTS ${TANDEM_TORCH_ROOT}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "LibTorch is not in ${TANDEM_TORCH_ROOT}: run scripts/setup, "
                      "or configure with -DTANDEM_TORCH=OFF")
endif()

function(tandem_torch_library name)
  add_library(torch::${name} SHARED IMPORTED GLOBAL)
  set_target_properties(torch::${name} PROPERTIES
    IMPORTED_LOCATION ${TANDEM_TORCH_ROOT}/lib/lib${name}.so)
  target_link_libraries(torch::${name} INTERFACE ${ARGN})
endfunction()

tandem_torch_library(c10)
# Searched after the system's include folders, as the wheel contains protobuf and fmt.
target_compile_options(torch::c10 INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-idirafter ${TANDEM_TORCH_ROOT}/include>"
  "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-isystem ${TANDEM_TORCH_ROOT}/include>")
tandem_torch_library(torch_cpu torch::c10 Threads::Threads)
if(TANDEM_CUDA OR TANDEM_CUDA_LINK)
  tandem_torch_library(c10_cuda torch::c10 CUDA::cudart)
  tandem_torch_library(torch_cuda torch::torch_cpu torch::c10_cuda)
  # Registers itself at load. No symbol refers to it, so the linker would drop it.
  target_link_options(torch::torch_cuda INTERFACE
    "LINKER:--no-as-needed,${TANDEM_TORCH_ROOT}/lib/libtorch_cuda.so,--as-needed")
endif()

# The precompiled header of the LibTorch backend; called by its folder.
function(tandem_pch_torch)
  tandem_pch(tandem_pch_torch pch_torch.h torch::torch_cpu)
endfunction()
