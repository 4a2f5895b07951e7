# Checks the types of client/web. The compiler finds packages in a folder above the sources, so that these are copied next to the
# packages of scripts/setup.
file(REMOVE_RECURSE ${FOLDER})
file(COPY ${SOURCES}/src ${SOURCES}/tsconfig.json DESTINATION ${FOLDER})
file(CREATE_LINK ${MODULES} ${FOLDER}/node_modules SYMBOLIC)
execute_process(COMMAND ${NODE} ${TSC} --noEmit -p ${FOLDER} RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "client/web has wrong types")
endif()
