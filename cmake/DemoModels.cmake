# Unpacks the weights of models/code-large, which the repository has in a lossless archive: 13 instead of 20 MB.
set(archive ${CMAKE_SOURCE_DIR}/models/code-large/model.safetensors.tar.xz)
set(weights ${CMAKE_SOURCE_DIR}/models/code-large/model.safetensors)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${archive})
if(NOT EXISTS ${weights} OR ${archive} IS_NEWER_THAN ${weights})
  file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${CMAKE_SOURCE_DIR}/models/code-large TOUCH)
endif()
