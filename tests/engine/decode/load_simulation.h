// A server under load in virtual time: the real loop and methods, on a device that takes as long
// for its batches as a real one. Clients form a closed loop: each sends its next request, with a
// prompt that no request has had, when its last one is answered.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/backend/scripted/script.h"
#include "engine/decode/gen.h"

namespace tandem::test {

// Seconds of a batch: linear between the given (rows, seconds), and `work` more for each pass after
// the first.
struct DeviceTime {
  std::vector<std::pair<double, double>> rows;
  double work = 0;

  double seconds(int batch_rows, int works) const;
};

// BatchTime of the large and the small model, by numbers_of(); empty: nothing is known.
using BatchTimes = std::array<std::vector<double>, 2>;

struct Load {
  int clients = 1;
  bool bursts = false;             // clients send together, when all are answered
  double pause = 0;                // seconds from an answer to the client's next request
  int prompt = 150, answer = 128;  // tokens; answers have half to one and a half of this
  double copied = 0;               // share of the answer that the prompt contains, in parts of 8
  int edits_every = 0;  // tokens between edits of the prompt that make the answer; 0: no edits
  Script script;
  DeviceTime large, small;
  std::function<Task<void>(Gen)> method;
  bool two_models = true;
  int masks = 0;                    // of the small model
  double warm = 20, measured = 60;  // seconds
  BatchTimes learned;               // at the start
  RequestId first_request = 1;      // prompts and answers follow from the id
  int64_t history_tokens = 0;       // 0: no history
};

struct Answered {
  double seconds = 0;  // from submission to the end
  MethodStats stats;
};

struct Served {
  double tokens_per_second = 0;
  double requests_per_batch = 0;  // of the large model
  double small_batches = 0;       // for each of the large model
  bool right = true;              // all tokens are those of the script
  std::map<RequestId, Answered> requests;
  BatchTimes learned;
};

Served serve(const Load& load);

}  // namespace tandem::test
