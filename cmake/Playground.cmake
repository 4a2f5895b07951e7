# tandem::playground: the files of client/web as a table in C++ (server/http/playground.h). The table is empty, and a message says
# why, if Node.js or the packages are missing.
option(TANDEM_UI "Compile the playground into the server" ON)

set(folder ${CMAKE_BINARY_DIR}/playground)
set(web ${CMAKE_SOURCE_DIR}/client/web)
file(MAKE_DIRECTORY ${folder})
set(missing "")
set(modules "")

if(NOT TANDEM_UI)
  set(missing "TANDEM_UI is off")
else()
  find_program(TANDEM_NODE node)
  find_program(TANDEM_NPM npm)
  if(TANDEM_NODE)
    execute_process(COMMAND ${TANDEM_NODE} --version OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    string(REGEX REPLACE "^v" "" version "${version}")
  endif()
  if(NOT TANDEM_NODE OR version VERSION_LESS 18)
    set(missing "Node.js 18 or newer was not found")
  else()
    # The packages of scripts/setup, or else those of an earlier configuration.
    file(SHA256 ${web}/package-lock.json lock)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${web}/package-lock.json)
    foreach(place ${TANDEM_HOME}/web ${folder}/packages)
      if(NOT modules AND EXISTS ${place}/package-lock.json AND EXISTS ${place}/node_modules/esbuild)
        file(SHA256 ${place}/package-lock.json installed)
        if(installed STREQUAL lock)
          set(modules ${place}/node_modules)
        endif()
      endif()
    endforeach()
    if(NOT modules AND TANDEM_NPM)
      message(STATUS "Installing the packages of the playground")
      file(REMOVE_RECURSE ${folder}/packages)
      file(COPY ${web}/package.json ${web}/package-lock.json DESTINATION ${folder}/packages)
      execute_process(
        COMMAND ${TANDEM_NPM} ci --omit=dev --ignore-scripts --no-audit --no-fund --fetch-retries=1
        WORKING_DIRECTORY ${folder}/packages RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET TIMEOUT 180)
      if(failed)
        file(REMOVE_RECURSE ${folder}/packages)
      else()
        set(modules ${folder}/packages/node_modules)
      endif()
    endif()
    if(NOT modules)
      set(missing "its packages are not installed (scripts/setup)")
    endif()
  endif()
endif()

set(table ${folder}/playground_files.cpp)
if(missing)
  file(REMOVE ${folder}/modules)
  message(STATUS "The server is built without the playground: ${missing}")
  set(table ${folder}/no_playground_files.cpp)
  file(CONFIGURE OUTPUT ${table} @ONLY CONTENT [=[
#include "server/http/playground.h"

namespace tandem {
absl::Span<const StaticFile> playground_files() { return {}; }
}  // namespace tandem
]=])
else()
  file(WRITE ${folder}/modules "${modules}\n")  # for scripts/sbom
  file(GLOB sources CONFIGURE_DEPENDS ${web}/src/* ${web}/index.html)
  add_custom_command(
    OUTPUT ${table}
    COMMAND ${TANDEM_NODE} ${web}/build.mjs ${modules} ${folder}/files ${table}
    DEPENDS ${sources} ${web}/build.mjs ${web}/package-lock.json
    COMMENT "Building the playground"
    VERBATIM)
endif()
add_library(tandem_playground STATIC ${table})
target_include_directories(tandem_playground PRIVATE ${CMAKE_SOURCE_DIR})
target_link_libraries(tandem_playground PRIVATE tandem::edge)
add_library(tandem::playground ALIAS tandem_playground)
