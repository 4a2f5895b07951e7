// Sanitizer options of the test programs, in place of environment variables.
extern "C" {
const char* __asan_default_options();
const char* __ubsan_default_options();
const char* __tsan_default_options();
const char* __tsan_default_suppressions();

const char* __asan_default_options() {
  return "detect_stack_use_after_return=1:strict_string_checks=1:check_initialization_order=1:"
         "external_symbolizer_path=/usr/lib/llvm-19/bin/llvm-symbolizer";
}
const char* __ubsan_default_options() {
  return "print_stacktrace=1:external_symbolizer_path=/usr/lib/llvm-19/bin/llvm-symbolizer";
}
const char* __tsan_default_options() {
  return "halt_on_error=1:second_deadlock_stack=1:"
         "external_symbolizer_path=/usr/lib/llvm-19/bin/llvm-symbolizer";
}
// Rust code is not instrumented: TSan sees its calls of malloc and memcmp, but not its locks.
const char* __tsan_default_suppressions() { return "race:/rustc/\n"; }
}
