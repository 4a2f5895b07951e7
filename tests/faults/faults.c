// Makes one call of a process fail; preloaded by faults.py. TANDEM_FAULTS names a file of
// sizeof(struct control) bytes, which both map. Calls of one class are counted while `armed`. The
// call number `fail_at` fails with an error of its documentation; with `stay`, so do all later
// ones.
//
// Calls that cannot fail in practice are not counted: events, files of the kernel without a device,
// and options of descriptors that the process has opened itself.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum class { kMemory = 1, kThread = 2, kFile = 3, kSystem = 4 };

struct control {
  _Atomic int64_t armed;
  int64_t which;  // enum class
  int64_t fail_at;
  int64_t stay;
  _Atomic int64_t calls;
  _Atomic int64_t failed;
  char where[16000];  // the function, then "OBJECT OFFSET SYMBOL" of each caller, by line
};

static struct control* control;
static __thread int inside __attribute__((tls_model("initial-exec")));

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void* mmap(void*, size_t, int, int, int, long);

static void note(const char* name) {
  void* callers[40];
  const int n = backtrace(callers, 40);
  char* at = control->where;
  char* const end = at + sizeof(control->where);
  at += snprintf(at, (size_t)(end - at), "%s\n", name);
  for (int i = 2; i < n; ++i) {
    Dl_info of;
    if (dladdr(callers[i], &of) == 0 || of.dli_fname == NULL) continue;
    const long offset = (char*)callers[i] - (char*)of.dli_fbase;
    const char* const symbol = of.dli_sname == NULL ? "-" : of.dli_sname;
    const int size = snprintf(at, (size_t)(end - at), "%s %lx %s\n", of.dli_fname,
                              (unsigned long)offset, symbol);
    if (size < 0 || size >= end - at) break;
    at += size;
  }
}

// Whether this call fails.
static int fails(enum class which, const char* name) {
  if (control == NULL || inside || !atomic_load(&control->armed) ||
      control->which != (int64_t)which) {
    return 0;
  }
  const int64_t n = atomic_fetch_add(&control->calls, 1) + 1;
  if (n != control->fail_at && !(control->stay && n > control->fail_at && control->fail_at > 0))
    return 0;
  inside = 1;
  if (atomic_fetch_add(&control->failed, 1) == 0) note(name);
  inside = 0;
  return 1;
}

__attribute__((constructor)) static void begin(void) {
  void* warm[4];
  backtrace(warm, 4);  // loads the unwinder
  const char* const path = getenv("TANDEM_FAULTS");
  if (path == NULL) return;
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  const long at = syscall(SYS_mmap, NULL, sizeof(struct control), 3 /*PROT_READ|PROT_WRITE*/,
                          1 /*MAP_SHARED*/, fd, 0L);
  syscall(SYS_close, fd);
  if (at > 0 || at < -4096) control = (struct control*)at;
}

// --- Memory

#define MEMORY(call, ...)         \
  if (fails(kMemory, __func__)) { \
    errno = ENOMEM;               \
    return NULL;                  \
  }                               \
  return call(__VA_ARGS__)

void* malloc(size_t size) { MEMORY(__libc_malloc, size); }
void* calloc(size_t n, size_t size) { MEMORY(__libc_calloc, n, size); }
void* realloc(void* old, size_t size) { MEMORY(__libc_realloc, old, size); }
void* aligned_alloc(size_t alignment, size_t size) { MEMORY(__libc_memalign, alignment, size); }
void* memalign(size_t alignment, size_t size) { MEMORY(__libc_memalign, alignment, size); }

int posix_memalign(void** out, size_t alignment, size_t size) {
  void* const got = fails(kMemory, __func__) ? NULL : __libc_memalign(alignment, size);
  if (got == NULL) return ENOMEM;
  *out = got;
  return 0;
}

// --- The rest: the function of libc, unless it fails.

#define REAL(name) ((typeof(&name))real(#name, &real_##name))
static void* real(const char* name, _Atomic(void*)* cell) {
  void* found = atomic_load(cell);
  if (found == NULL) {
    inside = 1;
    found = dlsym(RTLD_NEXT, name);
    inside = 0;
    atomic_store(cell, found);
  }
  return found;
}

#define WRAP(type, name, parameters, arguments, which, counted, failure, error) \
  static _Atomic(void*) real_##name;                                            \
  type name parameters;                                                         \
  type name parameters {                                                        \
    if ((counted) && fails(which, #name)) {                                     \
      errno = error;                                                            \
      return (type)(failure);                                                   \
    }                                                                           \
    return REAL(name) arguments;                                                \
  }

static int is_event(int fd) {
  struct stat status;
  // Anonymous inodes have no type: eventfd, epoll, timerfd.
  return syscall(SYS_fstat, fd, &status) == 0 && (status.st_mode & S_IFMT) == 0;
}

static _Atomic(void*) real_pthread_create;
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                   void* argument) {
  if (fails(kThread, __func__)) return EAGAIN;
  return REAL(pthread_create)(thread, attributes, run, argument);
}

// Files

#define OPEN(name, parameters, arguments, flags)          \
  static _Atomic(void*) real_##name;                      \
  int name parameters {                                   \
    mode_t mode = 0;                                      \
    if (flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) { \
      va_list rest;                                       \
      va_start(rest, flags);                              \
      mode = va_arg(rest, mode_t);                        \
      va_end(rest);                                       \
    }                                                     \
    if (fails(kFile, #name)) {                            \
      errno = EMFILE;                                     \
      return -1;                                          \
    }                                                     \
    return REAL(name) arguments;                          \
  }
OPEN(open, (const char* path, int flags, ...), (path, flags, mode), flags)
OPEN(open64, (const char* path, int flags, ...), (path, flags, mode), flags)
OPEN(openat, (int at, const char* path, int flags, ...), (at, path, flags, mode), flags)
OPEN(openat64, (int at, const char* path, int flags, ...), (at, path, flags, mode), flags)

WRAP(FILE*, fopen, (const char* path, const char* mode), (path, mode), kFile, 1, NULL, EMFILE)
WRAP(FILE*, fopen64, (const char* path, const char* mode), (path, mode), kFile, 1, NULL, EMFILE)
WRAP(void*, opendir, (const char* path), (path), kFile, 1, NULL, EMFILE)
WRAP(ssize_t, read, (int fd, void* to, size_t n), (fd, to, n), kFile, !is_event(fd), -1, EIO)
WRAP(ssize_t, pread, (int fd, void* to, size_t n, long at), (fd, to, n, at), kFile, 1, -1, EIO)
WRAP(ssize_t, pread64, (int fd, void* to, size_t n, long at), (fd, to, n, at), kFile, 1, -1, EIO)
WRAP(ssize_t, write, (int fd, const void* from, size_t n), (fd, from, n), kFile, !is_event(fd), -1,
     ENOSPC)
WRAP(int, stat, (const char* path, struct stat* out), (path, out), kFile, 1, -1, EIO)
WRAP(int, lstat, (const char* path, struct stat* out), (path, out), kFile, 1, -1, EIO)
WRAP(int, fstat, (int fd, struct stat* out), (fd, out), kFile, 1, -1, EIO)
WRAP(int, stat64, (const char* path, struct stat64* out), (path, out), kFile, 1, -1, EIO)
WRAP(int, lstat64, (const char* path, struct stat64* out), (path, out), kFile, 1, -1, EIO)
WRAP(int, fstat64, (int fd, struct stat64* out), (fd, out), kFile, 1, -1, EIO)
WRAP(ssize_t, readlink, (const char* path, char* to, size_t n), (path, to, n), kFile, 1, -1, EIO)
WRAP(int, rename, (const char* from, const char* to), (from, to), kFile, 1, -1, EIO)
WRAP(void*, mmap, (void* at, size_t n, int protection, int flags, int fd, long from),
     (at, n, protection, flags, fd, from), kFile, 1, -1, ENOMEM)
WRAP(void*, mmap64, (void* at, size_t n, int protection, int flags, int fd, long from),
     (at, n, protection, flags, fd, from), kFile, 1, -1, ENOMEM)

// Sockets and waiting

WRAP(int, socket, (int domain, int type, int protocol), (domain, type, protocol), kSystem, 1, -1,
     EMFILE)
WRAP(int, socketpair, (int domain, int type, int protocol, int* ends),
     (domain, type, protocol, ends), kSystem, 1, -1, EMFILE)
WRAP(int, bind, (int fd, const void* name, unsigned n), (fd, name, n), kSystem, 1, -1, EADDRINUSE)
WRAP(int, listen, (int fd, int backlog), (fd, backlog), kSystem, 1, -1, EADDRINUSE)
WRAP(int, accept4, (int fd, void* name, unsigned* n, int flags), (fd, name, n, flags), kSystem, 1,
     -1, EMFILE)
WRAP(int, getsockname, (int fd, void* name, unsigned* n), (fd, name, n), kSystem, 1, -1, ENOBUFS)
WRAP(int, getpeername, (int fd, void* name, unsigned* n), (fd, name, n), kSystem, 1, -1, ENOTCONN)
WRAP(int, getsockopt, (int fd, int level, int name, void* out, unsigned* n),
     (fd, level, name, out, n), kSystem, 1, -1, ENOBUFS)
WRAP(int, setsockopt, (int fd, int level, int name, const void* in, unsigned n),
     (fd, level, name, in, n), kSystem, 1, -1, ENOMEM)
WRAP(ssize_t, recv, (int fd, void* to, size_t n, int flags), (fd, to, n, flags), kSystem, 1, -1,
     ECONNRESET)
WRAP(ssize_t, recvfrom, (int fd, void* to, size_t n, int flags, void* name, unsigned* size),
     (fd, to, n, flags, name, size), kSystem, 1, -1, ECONNRESET)
WRAP(ssize_t, recvmsg, (int fd, void* message, int flags), (fd, message, flags), kSystem, 1, -1,
     ECONNRESET)
WRAP(ssize_t, send, (int fd, const void* from, size_t n, int flags), (fd, from, n, flags), kSystem,
     1, -1, ECONNRESET)
WRAP(ssize_t, sendmsg, (int fd, const void* message, int flags), (fd, message, flags), kSystem, 1,
     -1, ECONNRESET)
WRAP(int, epoll_create1, (int flags), (flags), kSystem, 1, -1, EMFILE)
WRAP(int, epoll_ctl, (int set, int operation, int fd, void* event), (set, operation, fd, event),
     kSystem, operation != 2 /* EPOLL_CTL_DEL */, -1, ENOMEM)
WRAP(int, epoll_wait, (int set, void* events, int n, int timeout), (set, events, n, timeout),
     kSystem, 1, -1, EINTR)
WRAP(int, poll, (void* polled, unsigned long n, int timeout), (polled, n, timeout), kSystem, 1, -1,
     EINTR)
WRAP(int, eventfd, (unsigned count, int flags), (count, flags), kSystem, 1, -1, EMFILE)
WRAP(int, pipe2, (int ends[2], int flags), (ends, flags), kSystem, 1, -1, EMFILE)
WRAP(int, getaddrinfo, (const char* host, const char* service, const void* hints, void** out),
     (host, service, hints, out), kSystem, 1, -10 /* EAI_MEMORY */, ENOMEM)

static _Atomic(void*) real_fcntl;
int fcntl(int fd, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  if ((command == F_DUPFD || command == F_DUPFD_CLOEXEC) && fails(kSystem, __func__)) {
    errno = EMFILE;
    return -1;
  }
  return REAL(fcntl)(fd, command, argument);
}
