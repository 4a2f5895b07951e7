// Requests and answers of POST /v1/embeddings in OpenAI's form, and of POST /v1/rerank in that of
// Jina and Cohere. Pure functions; errors are INVALID_ARGUMENT and quote no texts.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::openai {

struct EmbeddingsRequest {
  v1::EmbedRequest message;
  bool base64 = false;  // the values as little-endian floats in base64, not as numbers
};

absl::StatusOr<EmbeddingsRequest> embeddings_from(const std::string& body);
absl::StatusOr<v1::RerankRequest> rerank_from(const std::string& body);

// {object, data: [{object, index, embedding}], model, usage}
std::string embeddings_json(const v1::EmbedResponse& response, const std::string& model,
                            bool base64);
// {id, model, results: [{index, relevance_score, document: {text}}], usage}
std::string rerank_json(const v1::RerankResponse& response, const std::string& model,
                        bool documents);

}  // namespace tandem::openai
