# gRPC from its source (scripts/setup --grpc) instead of the system's: gRPC::grpc++ as a static library, and the system's plugin, whose code
# its headers take. All that it needs is the system's too, so that the program has one abseil, one protobuf and one OpenSSL.
if(NOT EXISTS ${TANDEM_HOME}/grpc/CMakeLists.txt)
  message(FATAL_ERROR "gRPC's source is not in ${TANDEM_HOME}/grpc: run scripts/setup --grpc")
endif()

function(tandem_add_grpc source)
  foreach(provider ABSL CARES RE2 SSL ZLIB)
    set(gRPC_${provider}_PROVIDER package CACHE INTERNAL "")
  endforeach()
  # Protobuf is for its generators and for services of its own: neither is built.
  set(gRPC_PROTOBUF_PROVIDER none CACHE INTERNAL "")
  set(gRPC_BUILD_CODEGEN OFF CACHE INTERNAL "")
  set(gRPC_BUILD_CSHARP_EXT OFF CACHE INTERNAL "")
  set(gRPC_INSTALL OFF CACHE INTERNAL "")
  set(CMAKE_CXX_STANDARD 17)
  set(CMAKE_C_FLAGS_RELEASE "-O3 -DNDEBUG")  # its asserts are not ours
  set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
  set(CMAKE_EXPORT_COMPILE_COMMANDS OFF)  # not for clang-tidy
  set(CMAKE_WARN_DEPRECATED OFF CACHE INTERNAL "")
  # It was written for older compilers; its warnings are not ours.
  set(CMAKE_C_FLAGS "${CMAKE_C_FLAGS} -w")
  set(CMAKE_CXX_FLAGS "${CMAKE_CXX_FLAGS} -w -Wno-missing-template-arg-list-after-template-kw")
  add_subdirectory(${source} ${CMAKE_BINARY_DIR}/grpc EXCLUDE_FROM_ALL SYSTEM)

  # Most of the compiler's time is spent on the same headers, and half of the files are of xDS, which nobody here speaks.
  foreach(target grpc grpc++)
    get_target_property(files ${target} SOURCES)
    set(reports ${files})  # of load, which clients read
    list(FILTER reports INCLUDE REGEX "/orca/")
    list(FILTER files EXCLUDE REGEX "xds|envoy|udpa|opencensus")
    set_target_properties(${target} PROPERTIES SOURCES "${files};${reports}")
  endforeach()
  set_source_files_properties(${source}/src/core/plugin_registry/grpc_plugin_registry_extra.cc TARGET_DIRECTORY grpc
    PROPERTIES COMPILE_DEFINITIONS GRPC_NO_XDS)
  # They want a constructor of abseil's, whose name Clang 18 and later spell otherwise than the compiler of Debian's library.
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
