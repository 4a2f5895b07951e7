# gRPC from source (scripts/setup --grpc): gRPC::grpc++ as a static library. The system's plugin generates compatible code. All
# dependencies are the system's, so that a program has one abseil, one protobuf and one OpenSSL.
if(NOT EXISTS ${TANDEM_HOME}/grpc/CMakeLists.txt)
  message(FATAL_ERROR "The source of gRPC is missing in ${TANDEM_HOME}/grpc: run scripts/setup --grpc")
endif()

function(tandem_add_grpc source)
  foreach(provider ABSL CARES RE2 SSL ZLIB)
    set(gRPC_${provider}_PROVIDER package CACHE INTERNAL "")
  endforeach()
  # Only the generators and the extra services need protobuf, and neither is built.
  set(gRPC_PROTOBUF_PROVIDER none CACHE INTERNAL "")
  set(gRPC_BUILD_CODEGEN OFF CACHE INTERNAL "")
  set(gRPC_BUILD_CSHARP_EXT OFF CACHE INTERNAL "")
  set(gRPC_INSTALL OFF CACHE INTERNAL "")
  set(CMAKE_CXX_STANDARD 17)
  set(CMAKE_C_FLAGS_RELEASE "-O3 -DNDEBUG")  # without asserts, also in builds with TANDEM_ASSERTS
  set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
  set(CMAKE_EXPORT_COMPILE_COMMANDS OFF)  # excludes it from clang-tidy
  set(CMAKE_WARN_DEPRECATED OFF CACHE INTERNAL "")
  # gRPC 1.56 was written for older compilers: no warnings.
  set(CMAKE_C_FLAGS "${CMAKE_C_FLAGS} -w")
  set(CMAKE_CXX_FLAGS "${CMAKE_CXX_FLAGS} -w -Wno-missing-template-arg-list-after-template-kw")
  add_subdirectory(${source} ${CMAKE_BINARY_DIR}/grpc EXCLUDE_FROM_ALL SYSTEM)

  # Excludes xDS, half of the files, which Tandem does not use. Precompiles the most expensive headers.
  foreach(target grpc grpc++)
    get_target_property(files ${target} SOURCES)
    set(reports ${files})  # load reports, which clients parse
    list(FILTER reports INCLUDE REGEX "/orca/")
    list(FILTER files EXCLUDE REGEX "xds|envoy|udpa|opencensus")
    set_target_properties(${target} PROPERTIES SOURCES "${files};${reports}")
  endforeach()
  set_source_files_properties(${source}/src/core/plugin_registry/grpc_plugin_registry_extra.cc TARGET_DIRECTORY grpc
    PROPERTIES COMPILE_DEFINITIONS GRPC_NO_XDS)
  # These use a constructor of abseil whose mangled name differs between Clang 18 and the compiler of Debian's library.
  set_source_files_properties(${source}/src/core/ext/transport/chttp2/transport/chttp2_transport.cc
    ${source}/src/core/lib/gprpp/status_helper.cc TARGET_DIRECTORY grpc
    PROPERTIES COMPILE_OPTIONS -fclang-abi-compat=17 SKIP_PRECOMPILE_HEADERS ON)
  target_precompile_headers(grpc PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${source}/src/core/lib/channel/promise_based_filter.h>"
    "$<$<COMPILE_LANGUAGE:CXX>:${source}/src/core/lib/security/credentials/credentials.h>"
    "$<$<COMPILE_LANGUAGE:CXX>:${source}/src/core/lib/load_balancing/lb_policy.h>"
    "$<$<COMPILE_LANGUAGE:CXX>:${source}/src/core/lib/config/core_configuration.h>"
    "$<$<COMPILE_LANGUAGE:CXX>:${source}/src/core/lib/json/json.h>")
endfunction()
tandem_add_grpc(${TANDEM_HOME}/grpc)
add_library(gRPC::grpc++ ALIAS grpc++)

find_program(TANDEM_GRPC_PLUGIN grpc_cpp_plugin REQUIRED)
add_executable(gRPC::grpc_cpp_plugin IMPORTED GLOBAL)
set_target_properties(gRPC::grpc_cpp_plugin PROPERTIES IMPORTED_LOCATION ${TANDEM_GRPC_PLUGIN})
