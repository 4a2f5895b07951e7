// Task<T>: a lazy coroutine, used for decoding methods and their subroutines.
//
// Loop thread only. Ownership is a tree: a task owns its frame, and a frame holds the tasks that it
// awaits. Destroying the root therefore destroys all frames, innermost first, wherever they are
// suspended. This is how requests are cancelled.
//
// Rules for coroutines: parameters by value; no capturing lambdas; `auto r = co_await f();` as a
// statement of its own. An exception that escapes terminates the process.
#pragma once

#include <coroutine>
#include <exception>
#include <optional>
#include <utility>

namespace tandem {

template <class T>
class Task;

namespace async_internal {

struct PromiseBase {
  std::coroutine_handle<> continuation;

  struct FinalAwaiter {
    bool await_ready() noexcept { return false; }
    template <class Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> h) noexcept {
      std::coroutine_handle<> next = h.promise().continuation;
      return next ? next : std::noop_coroutine();
    }
    void await_resume() noexcept {}
  };

  std::suspend_always initial_suspend() noexcept { return {}; }
  FinalAwaiter final_suspend() noexcept { return {}; }
  void unhandled_exception() noexcept { std::terminate(); }
};

template <class T>
struct Promise : PromiseBase {
  std::optional<T> value;
  Task<T> get_return_object();
  void return_value(T v) { value.emplace(std::move(v)); }
  T take() { return std::move(*value); }
};

template <>
struct Promise<void> : PromiseBase {
  Task<void> get_return_object();
  void return_void() {}
  void take() {}
};

}  // namespace async_internal

template <class T = void>
class [[nodiscard]] Task {
 public:
  using promise_type = async_internal::Promise<T>;
  using Handle = std::coroutine_handle<promise_type>;

  Task() = default;
  explicit Task(Handle h) : handle_(h) {}
  Task(Task&& o) noexcept : handle_(std::exchange(o.handle_, nullptr)) {}
  Task& operator=(Task&& o) noexcept {
    if (this != &o) {
      reset();
      handle_ = std::exchange(o.handle_, nullptr);
    }
    return *this;
  }
  ~Task() { reset(); }

  // Destroys the frame and all frames that it awaits. REQUIRES: suspended.
  void reset() {
    if (handle_) std::exchange(handle_, nullptr).destroy();
  }
  bool valid() const { return static_cast<bool>(handle_); }
  bool done() const { return handle_.done(); }
  std::coroutine_handle<> handle() const { return handle_; }

  auto operator co_await() && noexcept {
    struct Awaiter {
      Handle callee;
      bool await_ready() noexcept { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<> caller) noexcept {
        callee.promise().continuation = caller;
        return callee;
      }
      T await_resume() { return callee.promise().take(); }
    };
    return Awaiter{handle_};
  }

 private:
  Handle handle_;
};

namespace async_internal {
template <class T>
Task<T> Promise<T>::get_return_object() {
  return Task<T>(std::coroutine_handle<Promise>::from_promise(*this));
}
inline Task<void> Promise<void>::get_return_object() {
  return Task<void>(std::coroutine_handle<Promise>::from_promise(*this));
}
}  // namespace async_internal

}  // namespace tandem
