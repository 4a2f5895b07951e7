# Fuzz targets (libFuzzer), in builds with ASan.

# tandem_fuzzed(TARGET): instruments a target for coverage, as -fsanitize=fuzzer-no-link does, which conflicts with precompiled
# headers. Without a fuzzer it has no effect.
function(tandem_fuzzed target)
  if(TANDEM_FUZZ)
    target_compile_options(${target} PRIVATE -fsanitize-coverage=inline-8bit-counters,indirect-calls,trace-cmp,pc-table)
  endif()
endfunction()

# tandem_fuzz(NAME MAIN [SEEDS GLOB ...] [DICT FILE] [MAX_BYTES N] [RUNS N] [DEPS ...]): the program fuzz_NAME of MAIN, a path below
# tests/. DEPS are the instrumented targets (tandem_fuzzed). The test fuzz.NAME runs the seeds and RUNS (default 2000) inputs derived
# from them, with a fixed random seed. For longer runs:
#
#   build/asan/bin/fuzz_NAME -dict=tests/fuzz/json.dict FOUND_FOLDER SEED_FOLDER ...
# The target `fuzzers` builds all of them. The preset `fuzz` also instruments the crates.
function(tandem_fuzz name main)
  cmake_parse_arguments(FUZZ "" "DICT;MAX_BYTES;RUNS" "SEEDS;DEPS" ${ARGN})
  if(NOT TANDEM_SANITIZE MATCHES "address")
    return()
  endif()
  add_executable(fuzz_${name} ${CMAKE_SOURCE_DIR}/tests/${main}
    ${CMAKE_SOURCE_DIR}/cmake/sanitizer_options.cpp)
  tandem_own(fuzz_${name})
  target_link_libraries(fuzz_${name} PRIVATE ${FUZZ_DEPS})
  tandem_fuzzed(fuzz_${name})
  target_precompile_headers(fuzz_${name} REUSE_FROM tandem_pch)
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  if(NOT TARGET fuzzers)
    add_custom_target(fuzzers)
  endif()
  add_dependencies(fuzzers fuzz_${name})

  if(NOT FUZZ_MAX_BYTES)
    set(FUZZ_MAX_BYTES 4096)
  endif()
  if(NOT FUZZ_RUNS)
    set(FUZZ_RUNS 2000)
  endif()
  set(flags -runs=${FUZZ_RUNS} -seed=1 -max_len=${FUZZ_MAX_BYTES} -timeout=20 -rss_limit_mb=2048
    -artifact_prefix=${CMAKE_BINARY_DIR}/fuzz/${name}- -verbosity=0)
  if(FUZZ_SEEDS)
    # A list and not a folder, as libFuzzer writes its findings into the first folder.
    list(TRANSFORM FUZZ_SEEDS PREPEND ${CMAKE_SOURCE_DIR}/tests/)
    file(GLOB seeds CONFIGURE_DEPENDS ${FUZZ_SEEDS})
    string(REPLACE ";" "," seeds "${seeds}")
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/fuzz/${name}.seeds CONTENT "${seeds}" @ONLY)
    list(APPEND flags -seed_inputs=@${CMAKE_BINARY_DIR}/fuzz/${name}.seeds)
  endif()
  if(FUZZ_DICT)
    list(APPEND flags -dict=${CMAKE_SOURCE_DIR}/tests/${FUZZ_DICT})
  endif()
  add_test(NAME fuzz.${name} COMMAND fuzz_${name} ${flags} WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
  set_tests_properties(fuzz.${name} PROPERTIES TIMEOUT 120 LABELS "fuzz;asan")
endfunction()
