# A fuzz target for each parser of what comes from somewhere else (cmake/Fuzz.cmake).
set(weights engine/backend/torch/weights)
file(GLOB_RECURSE all_weights CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/${weights}/*.cpp)
tandem_fuzz(safetensors ${weights}/fuzz/safetensors_fuzz.cpp
  SOURCES ${weights}/safetensors.cpp ${weights}/gguf_blocks.cpp ${weights}/json_fields.cpp
  SEEDS ${weights}/fuzz/seeds/safetensors/* DICT fuzz/json.dict DEPS tandem::base)
tandem_fuzz(hf_config ${weights}/fuzz/hf_config_fuzz.cpp
  SOURCES ${all_weights}
  SEEDS data/golden_models/*/config.json data/golden_models/*/generation_config.json
  DICT fuzz/json.dict DEPS tandem::base)
tandem_fuzz(checkpoint ${weights}/fuzz/checkpoint_fuzz.cpp
  SOURCES ${all_weights}
  SEEDS ${weights}/fuzz/seeds/checkpoint/* data/golden_models/*/*.index.json
  DICT fuzz/json.dict DEPS tandem::base)
tandem_fuzz(gguf ${weights}/fuzz/gguf_fuzz.cpp
  SOURCES ${all_weights}
  MAX_BYTES 512 RUNS 5000 DEPS tandem::base)

set(text engine/text)
tandem_fuzz(tokenizer ${text}/fuzz/tokenizer_fuzz.cpp
  SOURCES ${text}/tokenizer.cpp ${text}/stream_decoder.cpp ${text}/utf8.cpp
  SEEDS ${text}/fuzz/seeds/tokenizer/* ${text}/data/chat/chatml/tokenizer.json
  DICT fuzz/json.dict MAX_BYTES 8192 RUNS 500 DEPS tandem::base tandem::text_rust)
tandem_fuzz(chat_template ${text}/fuzz/chat_template_fuzz.cpp
  SOURCES ${text}/chat_template.cpp ${text}/utf8.cpp
  SEEDS ${text}/fuzz/seeds/chat_template/* ${text}/data/chat/*/chat_template.jinja
  DICT fuzz/jinja.dict DEPS tandem::base tandem::text_rust absl::time)
tandem_fuzz(stop_matcher ${text}/fuzz/stop_matcher_fuzz.cpp
  SOURCES ${text}/stop_matcher.cpp ${text}/utf8.cpp DEPS tandem::base)

tandem_fuzz(config engine/host/fuzz/config_fuzz.cpp
  SOURCES engine/host/config.cpp engine/host/config_file.cpp engine/host/config_methods.cpp
  SEEDS engine/host/fuzz/seeds/* DEPS tandem::base tandem::config_proto)
tandem_fuzz(request server/fuzz/request_fuzz.cpp
  SOURCES server/request_from_proto.cpp server/chat_json.cpp engine/host/methods.cpp
          engine/host/deployment.cpp engine/host/names.cpp
  SEEDS server/fuzz/seeds/* DEPS tandem::sched tandem::text tandem::proto)
