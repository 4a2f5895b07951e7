// Is this build one of ASan or TSan? Then all takes an order of magnitude longer.
#pragma once

namespace tandem::test {

#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Draws of a test of a distribution. Small faults show in the build without sanitizers only, which
// also tests that wrong distributions are noticed.
inline constexpr int kDraws = kSanitized ? 2'000 : 100'000;

// Cases of a test of `n` random ones: all, or a quarter of them under sanitizers.
constexpr int cases(int n) { return kSanitized ? (n + 3) / 4 : n; }

}  // namespace tandem::test
