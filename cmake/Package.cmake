# Packages by CPack: a relocatable archive (TZST) and a Debian package (DEB). scripts/package runs it. The options of each are in
# PackageOptions.cmake. No licence has been chosen for Tandem, so the packages are not published.
set(CPACK_PACKAGE_NAME tandem)
set(CPACK_PACKAGE_VENDOR "The Tandem maintainers")
set(CPACK_PACKAGE_CONTACT "The Tandem maintainers <maintainers@tandem.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "gRPC and HTTP inference server with speculative decoding")
set(CPACK_PACKAGE_FILE_NAME tandem-${PROJECT_VERSION}-linux-x86_64)
set(CPACK_GENERATOR "TZST;DEB")
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_THREADS 0)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_SOURCE_DIR}/cmake/PackageOptions.cmake)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "systemd | systemd-standalone-sysusers | systemd-sysusers")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "ca-certificates")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
"Tandem serves language models on CPUs, with six decoding methods that draft
tokens with a small model and verify them with a large one. It has a gRPC API
and an OpenAI-compatible HTTP API. It needs an x86-64-v3 processor (AVX2).
.
No licence has been chosen for Tandem. This package must not be published.")
foreach(script postinst prerm postrm conffiles)
  list(APPEND CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${CMAKE_SOURCE_DIR}/deploy/debian/${script})
endforeach()
include(CPack)
