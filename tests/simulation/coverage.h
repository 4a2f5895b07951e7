// What happened, summed up over seeds: a run whose faults never strike proves nothing.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace tandem::simulation {

// How a request is decoded.
enum class Kind : uint8_t {
  kAr,
  kSpeculative,
  kNgram,
  kBild,
  kEarlyExit,
  kBita,
  kBeam,
  kEmbedded,  // LLM-to-SLM: hidden rows of one model, fed to another
  kPpd,
};
inline constexpr int kKinds = 9;
const char* kind_name(Kind kind);

// Where a request is when something happens to it.
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
  kDeadline,     // the call's
  kTimeLimit,    // the request's own
  kDeviceError,  // a batch fails
  kNan,          // a pass fails
  kNoMemory,     // a device cannot run a batch
  kSlowPass,
  kEviction,
  kStall,     // the reader stops reading
  kShutdown,  // everything is told to end
  kDeviceLost,
};
inline constexpr int kEvents = 11;
const char* event_name(Event event);

struct Coverage {
  // Of whole requests.
  int64_t requests = 0;
  int64_t answered = 0;  // OK and complete
  int64_t cut = 0;       // OK, ended by time limit or cancel
  int64_t cancelled = 0;
  int64_t deadlines = 0;
  int64_t device_failures = 0;
  int64_t refused = 0;
  int64_t shut_down = 0;
  int64_t lost = 0;         // with their device
  int64_t on_replicas = 0;  // placed there
  int64_t preemptions = 0;
  int64_t batches = 0;
  int64_t batches_behind = 0;  // others that were under way
  int64_t reused_tokens = 0;   // prompt rows out of the prefix cache
  int64_t sources = 0;         // answered out of an encoder's rows
  int64_t faults = 0;          // of all kinds
  std::array<std::array<std::array<int64_t, kEvents>, kPhases>, kKinds> hit{};

  void count(Kind kind, Phase phase, Event event);
  Coverage& operator+=(const Coverage& o);
  std::string summary() const;
  // Markdown: a row for each kind and phase, a column for each event.
  std::string table() const;
};

}  // namespace tandem::simulation
