# Compiler, linker, warnings and sanitizers.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
if(TANDEM_ASSERTS)
  set(CMAKE_CXX_FLAGS_RELEASE "-O3")
endif()

if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(WARNING "Tandem is built with clang 19: g++ 12 miscompiles its coroutines. "
                  "Use a preset (cmake --preset release).")
endif()

# With a time stamp in the precompiled header, every ccache lookup of its users would miss.
add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,Clang>:SHELL:-Xclang -fno-pch-timestamp>")
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-march=${TANDEM_MARCH};-pthread;-fno-omit-frame-pointer>")
add_link_options($<$<CXX_COMPILER_ID:Clang>:-fuse-ld=lld-19> LINKER:--as-needed)
if(TANDEM_SANITIZE)
  add_compile_options(-fsanitize=${TANDEM_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TANDEM_SANITIZE})
endif()

# Linked privately by all targets except generated code.
add_library(tandem_warnings INTERFACE)
target_compile_options(tandem_warnings INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror;-Wno-missing-field-initializers>"
  "$<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wthread-safety>")  # engine/base/mutex.h

find_package(Threads REQUIRED)
