# Folder of scripts/setup, shared by all checkouts: Python with LibTorch, the CUDA toolkit, cargo's target folder.
if(DEFINED ENV{TANDEM_HOME})
  set(TANDEM_HOME $ENV{TANDEM_HOME})
else()
  set(TANDEM_HOME $ENV{HOME}/.cache/tandem)
endif()
set(TANDEM_PYTHON ${TANDEM_HOME}/python/bin/python3)
file(GLOB TANDEM_SITE_PACKAGES ${TANDEM_HOME}/python/lib/python3*/site-packages)
