# Tests that are not C++: checks of the code base, Rust, Python, style.
function(tandem_check name label timeout)
  add_test(NAME ${name} COMMAND ${ARGN} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  # COST: ctest starts these before the many short ones, also where it has not measured any.
  set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT ${timeout} COST 50
    ENVIRONMENT "PYTHONPATH=${CMAKE_SOURCE_DIR};PYTHONDONTWRITEBYTECODE=1;TANDEM_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};CARGO_TARGET_DIR=${TANDEM_HOME}/cargo-target")
endfunction()

if(NOT TANDEM_SANITIZE)
  tandem_check(rules.includes rules 60 python3 scripts/check_includes.py)
  tandem_check(rules.includes_self_test rules 60 python3 tests/scripts/check_includes_test.py)
  tandem_check(rules.prose rules 60 python3 scripts/check_prose.py)
  tandem_check(rules.prose_self_test rules 60 python3 tests/scripts/check_prose_test.py)
  tandem_check(rules.configuration_reference rules 60 python3 scripts/configuration_reference --check)
  tandem_check(rules.configuration_reference_self_test rules 60
    python3 tests/scripts/configuration_reference_test.py)
  tandem_check(rules.http_fields rules 60 python3 tests/scripts/http_fields_test.py)
  tandem_check(rules.tidy_self_test rules 120 python3 tests/scripts/tidy_test.py)
  tandem_check(scripts.models rules 120 ${TANDEM_PYTHON} tests/scripts/models_test.py)
  if(EXISTS ${TANDEM_SITE_PACKAGES}/pytest)
    tandem_check(scripts.test_image rules 120
      ${TANDEM_PYTHON} -m pytest -q -p no:cacheprovider tests/scripts/test_image_test.py)
    tandem_check(scripts.claims rules 900
      ${TANDEM_PYTHON} -m pytest -q -p no:cacheprovider tests/scripts/claims_test.py)
    tandem_check(scripts.sbom rules 120
      ${TANDEM_PYTHON} -m pytest -q -p no:cacheprovider tests/scripts/sbom_test.py)
  endif()
endif()

if(EXISTS ${TANDEM_HOME}/python/bin/protolint AND NOT TANDEM_SANITIZE)
  tandem_check(rules.proto rules 60 ${TANDEM_HOME}/python/bin/protolint lint proto/tandem)
elseif(NOT TANDEM_SANITIZE)
  message(STATUS "No protolint: the protos are not checked (scripts/setup --full installs it)")
endif()

set(types ${TANDEM_HOME}/web/node_modules/typescript/bin/tsc)
if(TANDEM_SERVER AND EXISTS ${types} AND NOT TANDEM_SANITIZE)
  tandem_check(web.types web 120 ${CMAKE_COMMAND} -DNODE=${TANDEM_NODE} -DTSC=${types} -DFOLDER=${CMAKE_BINARY_DIR}/playground/types
    -DSOURCES=${CMAKE_SOURCE_DIR}/client/web -DMODULES=${TANDEM_HOME}/web/node_modules -P ${CMAKE_SOURCE_DIR}/cmake/WebTypes.cmake)
endif()

set(crate ${CMAKE_SOURCE_DIR}/engine/text/rust)
if(TANDEM_CARGO AND TANDEM_TORCH AND EXISTS ${crate}/Cargo.toml)
  tandem_check(rust.text rust 1200
    ${TANDEM_CARGO} test --release --locked --manifest-path ${crate}/Cargo.toml)
endif()
set(crate ${CMAKE_SOURCE_DIR}/client/pull)
if(TANDEM_CARGO AND TANDEM_SERVER AND NOT TANDEM_SANITIZE AND EXISTS ${crate}/Cargo.toml)
  tandem_check(rust.pull rust 1200
    ${TANDEM_CARGO} test --release --locked --manifest-path ${crate}/Cargo.toml)
endif()

if(TANDEM_TORCH AND TANDEM_SERVER)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}/tests
    ${CMAKE_SOURCE_DIR}/tests/*_test.py ${CMAKE_SOURCE_DIR}/tests/test_*.py)
  list(FILTER files EXCLUDE REGEX "^scripts/")
  if(files AND EXISTS ${TANDEM_SITE_PACKAGES}/pytest)
    # One test for all files: importing LibTorch and Transformers takes most of the time.
    set(tuning ${files})
    list(FILTER tuning INCLUDE REGEX "^tuning/")
    list(FILTER files EXCLUDE REGEX "^tuning/")
    list(LENGTH tuning count)
    tandem_check("python.tuning[${count}]" python 900 ${TANDEM_PYTHON} -m pytest -q -p no:cacheprovider tests/tuning)
    foreach(file IN LISTS files)
      string(REGEX REPLACE "\\.py$" "" name ${file})
      string(REPLACE "/" "." name ${name})
      tandem_check(python.${name} python 900
        ${TANDEM_PYTHON} -m pytest -q -p no:cacheprovider tests/${file})
      if(name MATCHES "\\.(bad_input|faults|gpu_check|history|package|playground|transformers_generate)_test$")
        set_tests_properties(python.${name} PROPERTIES COST 200)  # a minute or more
      endif()
    endforeach()
  elseif(files)
    message(STATUS "No pytest: no Python tests (scripts/setup --full installs it)")
  endif()
endif()

if(TANDEM_STYLE_TESTS)
  tandem_check(style.clang_format style 120 scripts/format --check)
  tandem_check(style.clang_tidy style 2400 scripts/tidy ${CMAKE_BINARY_DIR})
  cmake_host_system_information(RESULT processors QUERY NUMBER_OF_LOGICAL_CORES)
  set_tests_properties(style.clang_tidy PROPERTIES PROCESSORS ${processors} COST 1000)
endif()
