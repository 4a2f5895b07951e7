// Is this build one of ASan or TSan? Then all takes an order of magnitude longer.
#pragma once

namespace tandem::test {

#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace tandem::test
