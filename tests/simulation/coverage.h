// Event counts over all seeds, to check that faults occur in every state.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace tandem::simulation {

// Decoding methods.
enum class MethodKind : uint8_t {
  kAr,
  kSpeculative,
  kNgram,
  kBild,
  kEarlyExit,
  kBita,
  kBeam,
  kConditioned,  // LLM-to-SLM: one model's hidden rows condition another
  kPpd,
};
inline constexpr int kKinds = 9;
const char* kind_name(MethodKind kind);

// The state of a request at an event.
enum class Phase : uint8_t {
  kWaiting,   // for admission
  kPrefill,   // admitted, no token yet
  kDecoding,  // with tokens
  kPaused,    // at a round, for pages
  kHeld,      // at a round, for its reader
};
inline constexpr int kPhases = 5;
const char* phase_name(Phase phase);

enum class Event : uint8_t {
  kCancel,       // by the client
  kDeadline,     // of the call
  kTimeLimit,    // of the request
  kDeviceError,  // a batch fails
  kNan,          // a pass fails
  kNoMemory,     // a device cannot run a batch
  kSlowPass,
  kPreemption,
  kStall,     // the reader stops reading
  kShutdown,  // all requests are stopped
  kDeviceLost,
};
inline constexpr int kEvents = 11;
const char* event_name(Event event);

struct Coverage {
  // Counts of requests.
  int64_t requests = 0;
  int64_t answered = 0;  // OK and complete
  int64_t cut = 0;       // OK, ended by time limit or cancel
  int64_t cancelled = 0;
  int64_t deadlines = 0;
  int64_t device_failures = 0;
  int64_t refused = 0;
  int64_t shut_down = 0;
  int64_t lost = 0;         // ended with their device
  int64_t on_replicas = 0;  // placed on replicas
  int64_t preemptions = 0;
  int64_t batches = 0;
  int64_t batches_behind = 0;  // launched behind others
  int64_t reused_tokens = 0;   // prompt rows from the prefix cache
  int64_t sources = 0;         // answered with an encoder
  int64_t faults = 0;          // of all kinds
  std::array<std::array<std::array<int64_t, kEvents>, kPhases>, kKinds> hit{};

  void count(MethodKind kind, Phase phase, Event event);
  Coverage& operator+=(const Coverage& o);
  std::string summary() const;
  // Markdown: a row per method and phase, a column per event.
  std::string table() const;
};

}  // namespace tandem::simulation
