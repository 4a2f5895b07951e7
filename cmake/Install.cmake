# Installation. The default components make a complete tree; packages choose others:
#
#   programs   tandem-server, tandem, tandem-pull
#   libtorch   the libraries of LibTorch and CUDA that the programs load
#   data       protos, examples, alert rules, dashboard, pages, the statement about licences
#   service    the systemd unit and its user
#   notices    bill of materials and licences of dependencies
#   libraries  the libraries of Debian that the programs load; not by default
#   archive    what only the relocatable archive has; not by default
#   debian     what only the Debian package has; not by default
include(GNUInstallDirs)
set(private ${CMAKE_INSTALL_LIBDIR}/tandem)
set(share ${CMAKE_INSTALL_DATADIR}/tandem)
set(doc ${CMAKE_INSTALL_DATADIR}/doc/tandem)
set(optional libraries archive debian)

# RPATH, not RUNPATH: it also holds for the libraries of Debian in the archive, which have neither.
file(RELATIVE_PATH from_programs /root/${CMAKE_INSTALL_BINDIR} /root/${private})
foreach(program tandem-server tandem)
  set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/${from_programs}")
  target_link_options(${program} PRIVATE LINKER:--disable-new-dtags)
  install(TARGETS ${program} COMPONENT programs)
endforeach()
install(PROGRAMS ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/tandem-pull TYPE BIN COMPONENT programs)

# Variables of the scripts below.
set(settings "set(TANDEM_SOURCE [=[${CMAKE_SOURCE_DIR}]=])
set(TANDEM_BUILD [=[${CMAKE_BINARY_DIR}]=])
set(TANDEM_PRIVATE [=[${private}]=])
set(TANDEM_DOC [=[${doc}]=])
set(TANDEM_STRIP [=[${CMAKE_STRIP}]=])
set(TANDEM_CUDA [=[${TANDEM_CUDA}]=])
set(TANDEM_VERSION [=[${PROJECT_VERSION}]=])
")

# tandem_install_step(COMPONENT SCRIPT CODE): runs the script at installation, after the code.
function(tandem_install_step component script code)
  set(all)
  if(component IN_LIST optional)
    set(all EXCLUDE_FROM_ALL)
  endif()
  install(CODE "${settings}${code}" COMPONENT ${component} ${all})
  install(SCRIPT ${CMAKE_SOURCE_DIR}/cmake/${script}.cmake COMPONENT ${component} ${all})
endfunction()

tandem_install_step(libtorch InstallLibraries "set(TANDEM_LIBRARIES torch)")
tandem_install_step(libraries InstallLibraries "set(TANDEM_LIBRARIES system)")
tandem_install_step(notices InstallNotices "set(TANDEM_DELIVERY install)")
tandem_install_step(archive InstallNotices "set(TANDEM_DELIVERY archive)")
tandem_install_step(debian InstallNotices "set(TANDEM_DELIVERY deb)")

install(DIRECTORY proto/tandem proto/google proto/grpc DESTINATION ${share}/proto COMPONENT data
  FILES_MATCHING PATTERN "*.proto")
install(FILES deploy/debian/deployment.textproto deploy/ppd-cpu.textproto deploy/ppd-gpus.textproto deploy/ppd-one-gpu.textproto
  DESTINATION ${share}/examples COMPONENT data)
install(FILES deploy/observability/alerts.yml deploy/observability/grafana/dashboard.json
  DESTINATION ${share}/observability COMPONENT data)
file(GLOB pages CONFIGURE_DEPENDS docs/*.md docs/*.png docs/*.svg)
install(FILES ${pages} DESTINATION ${doc}/docs COMPONENT data)
install(FILES README.md CHANGELOG.md deploy/debian/copyright DESTINATION ${doc} COMPONENT data)

# The unit names the programs where they are installed.
install(FILES deploy/debian/sysusers.conf DESTINATION lib/sysusers.d RENAME tandem.conf COMPONENT service)
install(CODE "block(PROPAGATE CMAKE_INSTALL_MANIFEST_FILES)
file(READ [=[${CMAKE_SOURCE_DIR}/deploy/systemd/tandem.service]=] unit)
string(REGEX REPLACE \"^.*\\n(\\\\[Unit\\\\]\\n)\" \"\\\\1\" unit \"\${unit}\")
string(REPLACE /usr/local/bin/ \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/\" unit \"\${unit}\")
set(path \"\${CMAKE_INSTALL_PREFIX}/lib/systemd/system/tandem.service\")
file(WRITE \"\$ENV{DESTDIR}\${path}\" \"\${unit}\")
list(APPEND CMAKE_INSTALL_MANIFEST_FILES \"\${path}\")
endblock()" COMPONENT service)
install(FILES deploy/systemd/tandem.service DESTINATION ${share}/systemd COMPONENT archive EXCLUDE_FROM_ALL)

install(FILES deploy/debian/deployment.textproto DESTINATION /etc/tandem COMPONENT debian EXCLUDE_FROM_ALL)
install(FILES deploy/debian/lintian-overrides DESTINATION ${CMAKE_INSTALL_DATADIR}/lintian/overrides RENAME tandem
  COMPONENT debian EXCLUDE_FROM_ALL)
