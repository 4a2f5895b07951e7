// What the benchmarks of text turn into tokens and back: the demo's tokenizer, and a text in its
// language with characters of one to three bytes.
#pragma once

namespace tandem::bench {

inline constexpr char kModel[] = TANDEM_SOURCE_DIR "/models/code-small";
inline constexpr char kText[] =
    "def area(width, height):\n    \"\"\"Return the area of a rectangle, or raise "
    "ValueError.\"\"\"\n"
    "    if width < 0 or height < 0:\n        raise ValueError('negative: %r' % (width,))\n"
    "    return width * height  # naïve, but right — for once\n";

}  // namespace tandem::bench
