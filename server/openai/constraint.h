// Constraints of the OpenAI-compatible API: `response_format`, and the fields of other servers.
//
//   response_format       text, json_object (also with `schema`), json_schema, structural_tag
//   structured_outputs    vLLM: json, json_object, regex, choice, grammar, structural_tag,
//                         whitespace_pattern
//   guided_json, ...      vLLM before 0.12
//   json_schema, grammar  llama.cpp
//
// Pure functions.
#pragma once

#include "engine/base/violations.h"
#include "server/openai/field_table.h"
#include "server/openai/fields.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::openai {

// Reads these members. At most one of them may hold a constraint. Its name is added to `names`, so
// that errors of compilation have it.
void constraint_from(Fields* in, v1::GenerateRequest* out, FieldNames* names, Violations* wrong);

}  // namespace tandem::openai
