# CUDA toolkit that scripts/setup --cuda assembles from Python wheels in ${TANDEM_HOME}/cuda.
if(NOT EXISTS ${TANDEM_HOME}/cuda/bin/nvcc)
  message(FATAL_ERROR "nvcc is not in ${TANDEM_HOME}/cuda: run scripts/setup --cuda")
endif()
set(CMAKE_CUDA_COMPILER ${TANDEM_HOME}/cuda/bin/nvcc)
set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
set(CUDAToolkit_ROOT ${TANDEM_HOME}/cuda)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # one runtime, LibTorch's: its last error is that of all launches
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90a)
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
