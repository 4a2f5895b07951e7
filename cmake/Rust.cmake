# tandem_rust_library(NAME CRATE LIBRARY): the imported target tandem::NAME, a static library that cargo builds. All presets and
# checkouts share cargo's target folder, so dependencies are compiled once.
function(tandem_rust_library name crate library)
  add_library(tandem::${name} INTERFACE IMPORTED GLOBAL)
  if(NOT EXISTS ${crate}/Cargo.toml)
    message(STATUS "No crate in ${crate}: tandem::${name} is empty")
    return()
  endif()
  find_program(TANDEM_CARGO cargo HINTS $ENV{HOME}/.cargo/bin REQUIRED)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${crate}/src/*)
  set(target_dir ${TANDEM_HOME}/cargo-target)
  set(archive ${CMAKE_BINARY_DIR}/rust/lib${library}.a)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/rust)
  add_custom_command(
    OUTPUT ${archive}
    COMMAND ${CMAKE_COMMAND} -E env CARGO_TARGET_DIR=${target_dir}
            ${TANDEM_CARGO} build --release --locked --quiet --manifest-path ${crate}/Cargo.toml
    COMMAND ${CMAKE_COMMAND} -E copy ${target_dir}/release/lib${library}.a ${archive}
    DEPENDS ${sources} ${crate}/Cargo.toml ${crate}/Cargo.lock
    COMMENT "Building ${library} with cargo"
    VERBATIM)
  add_custom_target(${name}_build DEPENDS ${archive})
  add_dependencies(tandem::${name} ${name}_build)
  target_link_libraries(tandem::${name} INTERFACE ${archive} Threads::Threads ${CMAKE_DL_LIBS} m)
endfunction()
