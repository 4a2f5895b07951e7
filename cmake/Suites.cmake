# Included by ctest: one test per suite of a GoogleTest program, named NAME.SUITE[number of cases]. The includer sets PROGRAM, NAME,
# FOLDER, TIMEOUT, COST and LABELS (cmake/Tandem.cmake).
set(suite)
set(cases 0)

macro(tandem_add_suite)
  if(suite AND cases GREATER 0)
    add_test("${NAME}.${suite}[${cases}]" ${PROGRAM} "--gtest_filter=${suite}.*")
    set_tests_properties("${NAME}.${suite}[${cases}]" PROPERTIES
      WORKING_DIRECTORY ${FOLDER} TIMEOUT ${TIMEOUT} LABELS "${LABELS}" COST ${COST})
  endif()
endmacro()

execute_process(COMMAND ${PROGRAM} --gtest_list_tests
  WORKING_DIRECTORY ${FOLDER} OUTPUT_VARIABLE listed ERROR_VARIABLE error RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(STATUS "${PROGRAM} cannot list its tests: ${result} ${error}")
  add_test("${NAME}.cannot_list_its_tests" ${PROGRAM} --gtest_list_tests)
  return()
endif()
string(REGEX REPLACE "[;[]" "_" listed "${listed}")  # CMake lists cannot contain these characters of comments
string(REPLACE "\n" ";" listed "${listed}")
foreach(line IN LISTS listed)
  if(line MATCHES "^  ")
    if(NOT line MATCHES "^  DISABLED_")
      math(EXPR cases "${cases} + 1")
    endif()
  elseif(line MATCHES "^([A-Za-z0-9_/]+)\\.")
    set(next ${CMAKE_MATCH_1})
    tandem_add_suite()
    set(suite ${next})
    set(cases 0)
  endif()
endforeach()
tandem_add_suite()
