# Functions of the build files.

# tandem_pch(TARGET HEADER [LIBRARY ...]): an object library with a precompiled header that other targets reuse.
function(tandem_pch name header)
  add_library(${name} OBJECT ${CMAKE_SOURCE_DIR}/cmake/pch.cpp)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARGN})
  target_precompile_headers(${name} PRIVATE ${CMAKE_SOURCE_DIR}/cmake/${header})
  # The compiled header records its source's size, so clang would refuse a cached one after a change of comments.
  if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES ccache)
    set_target_properties(${name} PROPERTIES CXX_COMPILER_LAUNCHER
      "env;CCACHE_EXTRAFILES=${CMAKE_SOURCE_DIR}/cmake/${header};${CMAKE_CXX_COMPILER_LAUNCHER}")
  endif()
endfunction()

# tandem_own(TARGET): include folder and warnings of all handwritten code.
function(tandem_own target)
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE tandem_warnings)
endfunction()

# tandem_unity(TARGET REGEX SOURCE ...): unity build. Sources that match REGEX are compiled separately, as they define names that
# conflict with others.
function(tandem_unity target alone)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
  if(alone)
    list(FILTER ARGN INCLUDE REGEX ${alone})
    set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

# tandem_module(NAME [RECURSE] [INLINED] [ALONE REGEX] [EXCLUDE REGEX] [PCH TARGET] [SOURCES ...] [DEPS ...]): the static library
# tandem_NAME (alias tandem::NAME) of the *.cpp files in this folder. Without sources it is an INTERFACE library.
# RECURSE: includes subfolders.
# INLINED: link-time optimization in release builds, for modules with many small calls per token.
# ALONE: sources that a unity build compiles separately (TANDEM_UNITY).
function(tandem_module name)
  cmake_parse_arguments(MODULE "RECURSE;INLINED" "ALONE;EXCLUDE;PCH" "SOURCES;DEPS" ${ARGN})
  if(MODULE_RECURSE)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  else()
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  endif()
  if(MODULE_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX ${MODULE_EXCLUDE})
  endif()
  list(APPEND sources ${MODULE_SOURCES})
  if(sources)
    add_library(tandem_${name} STATIC ${sources})
    tandem_own(tandem_${name})
    if(MODULE_INLINED AND CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT TANDEM_ASSERTS)
      target_compile_options(tandem_${name} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-flto=thin>)
    endif()
    target_link_libraries(tandem_${name} PUBLIC ${MODULE_DEPS})
    tandem_define_version(${sources})
    if(NOT MODULE_PCH)
      set(MODULE_PCH tandem_pch)
    endif()
    if(TANDEM_PRECOMPILE_MODULES AND TARGET ${MODULE_PCH})
      target_precompile_headers(tandem_${name} REUSE_FROM ${MODULE_PCH})
    endif()
    if(TANDEM_UNITY STREQUAL "all")
      tandem_unity(tandem_${name} "${MODULE_ALONE}" ${sources})
    endif()
  else()
    add_library(tandem_${name} INTERFACE)
    target_include_directories(tandem_${name} INTERFACE ${CMAKE_SOURCE_DIR})
    target_link_libraries(tandem_${name} INTERFACE ${MODULE_DEPS})
  endif()
  add_library(tandem::${name} ALIAS tandem_${name})
endfunction()

# tandem_program(NAME MAIN [DEPS ...]): an executable of one source.
function(tandem_program name main)
  cmake_parse_arguments(PROGRAM "" "" "DEPS" ${ARGN})
  if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${main})
    return()
  endif()
  add_executable(${name} ${main})
  tandem_own(${name})
  tandem_define_version(${CMAKE_CURRENT_SOURCE_DIR}/${main})
  target_link_libraries(${name} PRIVATE ${PROGRAM_DEPS})
  target_precompile_headers(${name} REUSE_FROM tandem_pch)
endfunction()

# tandem_tests(NAME FOLDER [THREADS REGEX] [OPTIMIZED] [BY_SUITE] [ALONE REGEX] [EXCLUDE REGEX] [TIMEOUT SECONDS] [COST N]
# [LABELS ...] [DEPS ...]):
# the executable test_NAME of the *.cpp files below tests/FOLDER: tests in *_test.cpp, and helpers. ctest has a test NAME.CASE for each
# case. Nothing without *_test.cpp.
# THREADS: files whose tests start threads. The TSan build has only these. A thread of another file's test aborts the program
# (no_threads.cpp). "." allows all.
# OPTIMIZED: compiles the tests with the optimization of the preset. The default is -O0, which halves their compile time.
# BY_SUITE: one ctest test per suite, for programs with a slow start: those with LibTorch, and all under sanitizers.
# ALONE: as in tandem_module.
# COST: ctest starts tests of higher costs first: those that take longest, so that none is left for the end. Default: 20 by suite, else 0.
function(tandem_tests name folder)
  cmake_parse_arguments(TESTS "OPTIMIZED;BY_SUITE" "THREADS;ALONE;EXCLUDE;TIMEOUT;COST" "LABELS;DEPS" ${ARGN})
  file(GLOB_RECURSE cases CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${folder}/*_test.cpp)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${folder}/*.cpp)
  set(exclude "/fuzz/")  # programs of their own
  if(TESTS_EXCLUDE)
    set(exclude "${exclude}|${TESTS_EXCLUDE}")
  endif()
  list(FILTER cases EXCLUDE REGEX ${exclude})
  list(FILTER sources EXCLUDE REGEX ${exclude})
  if(NOT cases OR (TANDEM_SANITIZE MATCHES "thread" AND NOT TESTS_THREADS))
    return()
  endif()
  if(TANDEM_SANITIZE MATCHES "thread")
    set(others ${cases})
    list(FILTER others EXCLUDE REGEX ${TESTS_THREADS})
    list(REMOVE_ITEM sources "" ${others})
  endif()
  if(NOT TESTS_TIMEOUT)
    set(TESTS_TIMEOUT 120)
  endif()
  set(prefix ${name})
  if(TANDEM_SANITIZE)
    list(APPEND sources ${CMAKE_SOURCE_DIR}/cmake/sanitizer_options.cpp)
    string(REGEX REPLACE "^(.).*" "\\1san" sanitizer ${TANDEM_SANITIZE})
    set(prefix ${sanitizer}.${name})
    list(APPEND TESTS_LABELS ${sanitizer})
  elseif(NOT TESTS_THREADS STREQUAL ".")
    set(threads ${CMAKE_CURRENT_BINARY_DIR}/${name}_threads.cpp)
    file(CONFIGURE OUTPUT ${threads} @ONLY
      CONTENT "extern const char* const tandem_files_with_threads;\nconst char* const tandem_files_with_threads = R\"(@TESTS_THREADS@)\";\n")
    list(APPEND sources ${CMAKE_SOURCE_DIR}/cmake/no_threads.cpp ${threads})
  endif()
  string(REPLACE ";" "\\;" labels "cpp;${name};${TESTS_LABELS}")
  add_executable(test_${name} ${sources})
  tandem_own(test_${name})
  if(TANDEM_UNITY)
    tandem_unity(test_${name} "${TESTS_ALONE}" ${sources})
  endif()
  target_link_libraries(test_${name} PRIVATE ${TESTS_DEPS} GTest::gmock GTest::gtest GTest::gtest_main)
  target_compile_definitions(test_${name} PRIVATE TANDEM_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
    TANDEM_BINARY_DIR="${CMAKE_BINARY_DIR}" TANDEM_PYTHON="${TANDEM_PYTHON}")
  if(TESTS_OPTIMIZED)
    target_precompile_headers(test_${name} REUSE_FROM tandem_pch_test_optimized)
  else()
    target_compile_options(test_${name} PRIVATE -O0)
    target_precompile_headers(test_${name} REUSE_FROM tandem_pch_test)
  endif()
  if(TANDEM_SANITIZE AND NOT TESTS_BY_SUITE)
    set(TESTS_BY_SUITE ON)
    math(EXPR TESTS_TIMEOUT "4 * ${TESTS_TIMEOUT}")
  endif()
  if(NOT DEFINED TESTS_COST)
    set(TESTS_COST 0)
    if(TESTS_BY_SUITE)
      set(TESTS_COST 20)
    endif()
  endif()
  if(TESTS_BY_SUITE)
    set(script ${CMAKE_CURRENT_BINARY_DIR}/test_${name}_suites.cmake)
    file(GENERATE OUTPUT ${script} CONTENT "set(PROGRAM [=[$<TARGET_FILE:test_${name}>]=])
set(NAME ${prefix})
set(FOLDER [=[${CMAKE_SOURCE_DIR}]=])
set(TIMEOUT ${TESTS_TIMEOUT})
set(COST ${TESTS_COST})
set(LABELS \"cpp;${name};${TESTS_LABELS}\")
include([=[${CMAKE_SOURCE_DIR}/cmake/Suites.cmake]=])
")
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${script})
  else()
    gtest_discover_tests(test_${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120
      TEST_PREFIX ${prefix}. WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
      PROPERTIES TIMEOUT ${TESTS_TIMEOUT} COST ${TESTS_COST} LABELS "${labels}")
  endif()
endfunction()

tandem_pch(tandem_pch pch.h)
