# Defines the version for the files that include engine/base/version.h, so that a new commit recompiles only these.
execute_process(COMMAND git -C ${CMAKE_SOURCE_DIR} rev-parse --short HEAD
  OUTPUT_VARIABLE TANDEM_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
execute_process(COMMAND git -C ${CMAKE_SOURCE_DIR} rev-parse --git-path logs/HEAD
  OUTPUT_VARIABLE log OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
get_filename_component(log "${log}" ABSOLUTE BASE_DIR ${CMAKE_SOURCE_DIR})
if(EXISTS ${log} AND NOT IS_DIRECTORY ${log})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${log})
endif()

set(TANDEM_VERSION_DEFINITIONS
  TANDEM_VERSION="${PROJECT_VERSION}" TANDEM_COMMIT="${TANDEM_COMMIT}")
if(TANDEM_TORCH)
  file(STRINGS ${TANDEM_TORCH_ROOT}/version.py line REGEX "^__version__ = ")
  string(REGEX REPLACE ".*'(.*)'.*" "\\1" line "${line}")
  list(APPEND TANDEM_VERSION_DEFINITIONS TANDEM_TORCH_VERSION="${line}")
endif()
if(TANDEM_CUDA)
  list(APPEND TANDEM_VERSION_DEFINITIONS TANDEM_CUDA_VERSION="${CUDAToolkit_VERSION}")
endif()

function(tandem_define_version)
  foreach(source IN LISTS ARGN)
    file(STRINGS ${source} found REGEX "#include \"engine/base/version.h\"")
    if(found)
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_DEFINITIONS ${TANDEM_VERSION_DEFINITIONS})
    endif()
  endforeach()
endfunction()
