# Functions for crates. All presets and checkouts share cargo's target folder, so dependencies are compiled once.

# tandem_cargo(CRATE FILE OUTPUT): a custom command that builds the crate and copies FILE of its release folder to OUTPUT.
function(tandem_cargo crate file output)
  find_program(TANDEM_CARGO cargo HINTS $ENV{HOME}/.cargo/bin REQUIRED)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${crate}/src/*)
  set(target_dir ${TANDEM_HOME}/cargo-target)
  set(built ${target_dir}/release/${file})
  set(environment)
  set(more)
  if(TANDEM_RUST_COVERAGE)
    # With --target, cargo does not instrument build scripts and procedural macros, which would not link.
    set(triple ${CMAKE_SYSTEM_PROCESSOR}-unknown-linux-gnu)
    set(target_dir ${target_dir}/coverage)
    set(built ${target_dir}/${triple}/release/${file})
    set(more --target ${triple})
    set(coverage level=4 inline-8bit-counters pc-table trace-compares)
    list(TRANSFORM coverage PREPEND "-Cllvm-args=-sanitizer-coverage-")
    string(JOIN " " flags -Cpasses=sancov-module ${coverage})
    set(environment "RUSTFLAGS=${flags}")
  endif()
  get_filename_component(folder ${output} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -E env CARGO_TARGET_DIR=${target_dir} ${environment}
            ${TANDEM_CARGO} build --release --locked --quiet --manifest-path ${crate}/Cargo.toml ${more}
    COMMAND ${CMAKE_COMMAND} -E copy ${built} ${output}
    DEPENDS ${sources} ${crate}/Cargo.toml ${crate}/Cargo.lock
    COMMENT "Building ${file} with cargo"
    VERBATIM)
endfunction()

# tandem_rust_library(NAME CRATE LIBRARY): the imported target tandem::NAME, a static library that cargo builds.
function(tandem_rust_library name crate library)
  add_library(tandem::${name} INTERFACE IMPORTED GLOBAL)
  if(NOT EXISTS ${crate}/Cargo.toml)
    message(STATUS "No crate in ${crate}: tandem::${name} is empty")
    return()
  endif()
  set(archive ${CMAKE_BINARY_DIR}/rust/lib${library}.a)
  tandem_cargo(${crate} lib${library}.a ${archive})
  add_custom_target(${name}_build DEPENDS ${archive})
  add_dependencies(tandem::${name} ${name}_build)
  target_link_libraries(tandem::${name} INTERFACE ${archive} Threads::Threads ${CMAKE_DL_LIBS} m)
endfunction()

# tandem_rust_program(NAME CRATE): the target NAME, which puts the program NAME beside the others.
function(tandem_rust_program name crate)
  set(program ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${name})
  tandem_cargo(${crate} ${name} ${program})
  add_custom_target(${name} ALL DEPENDS ${program})
endfunction()
