# A fuzz target for each parser of untrusted input (cmake/Fuzz.cmake).
set(weights engine/backend/torch/weights)
tandem_fuzz(safetensors ${weights}/fuzz/safetensors_fuzz.cpp
  SEEDS ${weights}/fuzz/seeds/safetensors/* DICT fuzz/json.dict DEPS tandem::weights)
tandem_fuzz(hf_config ${weights}/fuzz/hf_config_fuzz.cpp
  SEEDS data/golden_models/*/config.json data/golden_models/*/generation_config.json
  DICT fuzz/json.dict DEPS tandem::weights)
tandem_fuzz(checkpoint ${weights}/fuzz/checkpoint_fuzz.cpp
  SEEDS ${weights}/fuzz/seeds/checkpoint/* data/golden_models/*/*.index.json
  DICT fuzz/json.dict DEPS tandem::weights)
tandem_fuzz(gguf ${weights}/fuzz/gguf_fuzz.cpp
  MAX_BYTES 512 RUNS 5000 DEPS tandem::weights)
tandem_fuzz(adapter ${weights}/fuzz/adapter_fuzz.cpp
  SEEDS ${weights}/fuzz/seeds/adapter/* DICT fuzz/json.dict DEPS tandem::weights)
tandem_fuzz(lora ${weights}/fuzz/lora_fuzz.cpp
  SEEDS ${weights}/fuzz/seeds/lora/* DICT fuzz/json.dict DEPS tandem::weights)

set(text engine/text)
tandem_fuzz(tokenizer ${text}/fuzz/tokenizer_fuzz.cpp
  SEEDS ${text}/fuzz/seeds/tokenizer/* ${text}/data/chat/chatml/tokenizer.json
  DICT fuzz/json.dict MAX_BYTES 8192 RUNS 500 DEPS tandem::text)
tandem_fuzz(chat_template ${text}/fuzz/chat_template_fuzz.cpp
  SEEDS ${text}/fuzz/seeds/chat_template/* ${text}/data/chat/*/chat_template.jinja
  DICT fuzz/jinja.dict DEPS tandem::text absl::time)
tandem_fuzz(stop_matcher ${text}/fuzz/stop_matcher_fuzz.cpp DEPS tandem::text)
tandem_fuzz(grammar ${text}/fuzz/grammar_fuzz.cpp
  SEEDS ${text}/fuzz/seeds/grammar/* DICT fuzz/grammar.dict MAX_BYTES 1024 RUNS 500 DEPS tandem::text)
tandem_fuzz(answer_parser ${text}/fuzz/answer_parser_fuzz.cpp SEEDS ${text}/fuzz/seeds/answer_parser/* DEPS tandem::text)

# Parts of engine/host and of server, which this build has not as a whole: what reads files of a deployment, and requests.
file(GLOB parts CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/engine/host/config/*.cpp ${CMAKE_SOURCE_DIR}/engine/host/methods/*.cpp)
foreach(part adapters deployment models/alignment models/loaded_model models/pair requests/answer_format requests/request)
  list(APPEND parts ${CMAKE_SOURCE_DIR}/engine/host/${part}.cpp)
endforeach()
add_library(tandem_fuzzed_parts STATIC ${parts} ${CMAKE_SOURCE_DIR}/server/grpc/request_from_proto.cpp ${CMAKE_SOURCE_DIR}/server/grpc/chat_json.cpp
  ${CMAKE_SOURCE_DIR}/server/grpc/constraint_from_proto.cpp ${CMAKE_SOURCE_DIR}/server/grpc/wire_scan.cpp)
tandem_own(tandem_fuzzed_parts)
tandem_fuzzed(tandem_fuzzed_parts)
target_link_libraries(tandem_fuzzed_parts PUBLIC tandem::sched tandem::text tandem::config_proto tandem::proto)
target_precompile_headers(tandem_fuzzed_parts REUSE_FROM tandem_pch)
tandem_fuzz(config engine/host/fuzz/config_fuzz.cpp SEEDS engine/host/fuzz/seeds/* DEPS tandem_fuzzed_parts)
tandem_fuzz(request server/grpc/fuzz/request_fuzz.cpp SEEDS server/grpc/fuzz/seeds/* DEPS tandem_fuzzed_parts)

tandem_fuzz(http_reader server/edge/fuzz/http_reader_fuzz.cpp
  SEEDS server/edge/fuzz/seeds/http_reader/* DEPS tandem::edge)
tandem_fuzz(bearer_tokens server/edge/fuzz/bearer_tokens_fuzz.cpp
  SEEDS server/edge/fuzz/seeds/bearer_tokens/* MAX_BYTES 512 DEPS tandem::edge)
tandem_fuzz(traceparent server/edge/fuzz/traceparent_fuzz.cpp
  SEEDS server/edge/fuzz/seeds/traceparent/* MAX_BYTES 64 DEPS tandem::edge)
tandem_fuzz(openai server/openai/fuzz/openai_fuzz.cpp
  SEEDS server/openai/fuzz/seeds/* DICT fuzz/json.dict DEPS tandem::openai)
