# Runs at installation: writes the bill of materials and the licences of dependencies, and for Debian a change log.
cmake_policy(VERSION 3.25)
# Variables named like a component would change the conditions of the script that includes this one.
block(PROPAGATE CMAKE_INSTALL_MANIFEST_FILES)
set(folder ${CMAKE_INSTALL_PREFIX}/${TANDEM_DOC})
execute_process(COMMAND ${TANDEM_SOURCE}/scripts/sbom ${TANDEM_BUILD} --out $ENV{DESTDIR}${folder} --delivery ${TANDEM_DELIVERY}
  COMMAND_ERROR_IS_FATAL ANY)
foreach(name sbom.cdx.json THIRD_PARTY_LICENCES.txt)
  message(STATUS "Installing: $ENV{DESTDIR}${folder}/${name}")
  list(APPEND CMAKE_INSTALL_MANIFEST_FILES ${folder}/${name})
endforeach()

if(TANDEM_DELIVERY STREQUAL "deb")
  execute_process(COMMAND git -C ${TANDEM_SOURCE} log -1 --format=%cD OUTPUT_VARIABLE date OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT date)
    set(date "Thu, 01 Jan 1970 00:00:00 +0000")
  endif()
  set(file $ENV{DESTDIR}${folder}/changelog)
  file(WRITE ${file} "tandem (${TANDEM_VERSION}) UNRELEASED; urgency=medium

  * Changes are listed in CHANGELOG.md.

 -- The Tandem maintainers <maintainers@tandem.invalid>  ${date}
")
  execute_process(COMMAND gzip -9nf ${file} COMMAND_ERROR_IS_FATAL ANY)
endif()
endblock()
