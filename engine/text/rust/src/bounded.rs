//! Runs a job with limits on its memory.
//!
//! Small templates can produce large values: indented nested JSON, a string repeated by itself. So each job
//! has its own thread, stack and heap. It calls `check()` where it makes values, and `check_text()` before it
//! makes a large text, and fails with an error beyond the soft limit.
//!
//! A program of operators only can allocate much between two such calls. An allocation cannot fail cleanly
//! in Rust (unwinding out of an allocator is undefined behaviour, failure aborts the process). So there is
//! also a hard limit. A job that exceeds it is abandoned like a coroutine that is never resumed: its thread
//! switches back to its own stack and ends, and the job's stack and heap are unmapped as a whole.
//!
//! REQUIRES: a job holds no lock that outlives it while it allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};
use std::io;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::{self, NonNull};
use std::sync::Once;
use std::thread;

use rlsf::Tlsf;

const STACK_BYTES: usize = 8 << 20;
const PAGE_BYTES: usize = 4 << 10;

#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// The job exceeded its hard limit.
    Memory,
    /// The job panicked, with this message.
    Panic(String),
    /// The thread or the heap could not be created.
    Thread(String),
}

#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Memory beyond which `check()` fails.
    pub soft: usize,
    /// Memory beyond which the job is abandoned.
    pub hard: usize,
    /// Bytes of a single text.
    pub text: usize,
}

/// The limit that a job exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Excess {
    Memory,
    Text,
}

/// Stack and heap of one job, used by its thread alone.
struct Heap {
    /// A guard page, the stack, which grows down to it, and the heap.
    mapped: NonNull<u8>,
    memory: NonNull<u8>,
    size: usize,
    free: UnsafeCell<Tlsf<'static, u32, u32, 32, 32>>,
    bounds: Bounds,
    /// Allocated bytes of the job.
    held: Cell<usize>,
    /// Whether new blocks come from this heap. Its blocks are freed here in any case.
    open: Cell<bool>,
    /// Where the thread resumes when the job has ended or is abandoned.
    back: UnsafeCell<libc::ucontext_t>,
}

// SAFETY: used by one thread at a time.
unsafe impl Sync for Heap {}

impl Heap {
    fn new(bounds: Bounds) -> io::Result<Box<Self>> {
        let size = (bounds.hard + bounds.hard / 4).next_multiple_of(PAGE_BYTES); // for gaps and headers
        // SAFETY: a new mapping, whose pages become resident when written. Few of them are, so none
        // should be huge pages.
        let mapped = unsafe {
            let mapped = libc::mmap(
                ptr::null_mut(),
                STACK_BYTES + size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            );
            if mapped == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            libc::madvise(mapped, STACK_BYTES + size, libc::MADV_NOHUGEPAGE);
            libc::mprotect(mapped, PAGE_BYTES, libc::PROT_NONE);
            NonNull::new(mapped.cast::<u8>()).expect("mapped")
        };
        // SAFETY: within the mapping.
        let memory = unsafe { mapped.add(STACK_BYTES) };
        let mut free = Tlsf::new();
        // SAFETY: the block outlives `free`, which owns it.
        unsafe { free.insert_free_block_ptr(NonNull::slice_from_raw_parts(memory, size)) };
        Ok(Box::new(Heap {
            mapped,
            memory,
            size,
            free: UnsafeCell::new(free),
            bounds,
            held: Cell::new(0),
            open: Cell::new(false),
            // SAFETY: plain data, written before it is read.
            back: UnsafeCell::new(unsafe { std::mem::zeroed() }),
        }))
    }

    fn holds(&self, memory: *mut u8) -> bool {
        (memory as usize).wrapping_sub(self.memory.as_ptr() as usize) < self.size
    }

    /// Allocates, or abandons the job.
    unsafe fn take(&self, layout: Layout) -> *mut u8 {
        let held = self.held.get().saturating_add(layout.size());
        if held <= self.bounds.hard {
            if let Some(memory) = (*self.free.get()).allocate(layout) {
                self.held.set(held);
                return memory.as_ptr();
            }
        }
        self.leave()
    }

    unsafe fn give(&self, memory: *mut u8, layout: Layout) {
        (*self.free.get()).deallocate(NonNull::new_unchecked(memory), layout.align());
        self.held.set(self.held.get() - layout.size());
    }

    /// Reallocates, or abandons the job.
    unsafe fn resize(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let held = (self.held.get() - layout.size()).saturating_add(size);
        // Both blocks exist during the copy.
        if held.saturating_add(layout.size()) <= self.bounds.hard || size <= layout.size() {
            let resized = Layout::from_size_align_unchecked(size, layout.align());
            if let Some(moved) =
                (*self.free.get()).reallocate(NonNull::new_unchecked(memory), resized)
            {
                self.held.set(held);
                return moved.as_ptr();
            }
        }
        self.leave()
    }
}

impl Heap {
    /// Calls `entry` on the job's stack. Returns when it returns or is abandoned.
    unsafe fn run(&self, entry: extern "C" fn()) {
        let mut job = std::mem::zeroed::<libc::ucontext_t>();
        libc::getcontext(&mut job);
        job.uc_stack.ss_sp = self.mapped.as_ptr().cast();
        job.uc_stack.ss_size = STACK_BYTES;
        job.uc_link = self.back.get();
        libc::makecontext(&mut job, entry, 0);
        libc::swapcontext(self.back.get(), &job);
    }

    /// Abandons the calling job.
    unsafe fn leave(&self) -> ! {
        self.open.set(false);
        libc::setcontext(self.back.get());
        unreachable!("no way back")
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: the mapping of new(); its thread has ended.
        unsafe { libc::munmap(self.mapped.as_ptr().cast(), STACK_BYTES + self.size) };
    }
}

thread_local! {
    /// The heap of the job on this thread; null: no job. Outlives the thread.
    static HEAP: Cell<*const Heap> = const { Cell::new(ptr::null()) };
    /// The task that runs on its stack.
    static TASK: Cell<*mut ()> = const { Cell::new(ptr::null_mut()) };
    static CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// The heap of the job on this thread.
fn heap() -> Option<&'static Heap> {
    // SAFETY: run() keeps it until this thread has ended.
    unsafe { HEAP.with(Cell::get).as_ref() }
}

fn open_heap() -> Option<&'static Heap> {
    heap().filter(|heap| heap.open.get())
}

/// Fails if the job on this thread exceeds its soft limit. Without a job, always succeeds.
pub fn check() -> Result<(), Excess> {
    match open_heap() {
        Some(heap) if heap.held.get() > heap.bounds.soft => Err(Excess::Memory),
        _ => Ok(()),
    }
}

/// Fails if the job on this thread may not make a text of `bytes`.
pub fn check_text(bytes: usize) -> Result<(), Excess> {
    match open_heap() {
        Some(heap) if bytes > heap.bounds.text => Err(Excess::Text),
        _ => check(),
    }
}

/// Ends the process, as the server does if C++ code cannot allocate. Rust would abort, with a core file.
#[cold]
fn out_of_memory() -> ! {
    const MESSAGE: &[u8] = b"tandem: out of memory\n";
    // SAFETY: neither call allocates.
    unsafe {
        libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len());
        libc::_exit(1)
    }
}

/// Memory of the system.
fn checked(memory: *mut u8) -> *mut u8 {
    if memory.is_null() {
        out_of_memory()
    }
    memory
}

struct JobAllocator;

#[global_allocator]
static ALLOCATOR: JobAllocator = JobAllocator;

// SAFETY: a block belongs to the heap whose range contains it, else to the system. Every request is passed
// unchanged to its owner.
unsafe impl GlobalAlloc for JobAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match open_heap() {
            Some(heap) => heap.take(layout),
            None => checked(System.alloc(layout)),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match open_heap() {
            Some(heap) => {
                let memory = heap.take(layout);
                memory.write_bytes(0, layout.size());
                memory
            }
            None => checked(System.alloc_zeroed(layout)),
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match heap().filter(|heap| heap.holds(memory)) {
            Some(heap) => heap.resize(memory, layout, size),
            None => checked(System.realloc(memory, layout, size)),
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        match heap().filter(|heap| heap.holds(memory)) {
            Some(heap) => heap.give(memory, layout),
            None => System.dealloc(memory, layout),
        }
    }
}

/// Input and result of a job.
struct Task<F, T> {
    job: Option<F>,
    result: Option<Result<T, String>>,
}

extern "C" fn run_task<F: FnOnce() -> T, T: Clone>() {
    // SAFETY: run_on() has set it, and reads the task afterwards.
    let task = unsafe { &mut *TASK.with(Cell::get).cast::<Task<F, T>>() };
    if let (Some(heap), Some(job)) = (heap(), task.job.take()) {
        heap.open.set(true);
        let result = catch(job);
        heap.open.set(false);
        task.result = Some(result.clone()); // not on the heap
    }
}

/// The job's result; None: it was abandoned.
fn run_on<F: FnOnce() -> T, T: Clone>(heap: &Heap, job: F) -> Option<Result<T, String>> {
    let task = UnsafeCell::new(Task { job: Some(job), result: None });
    HEAP.with(|cell| cell.set(heap));
    TASK.with(|cell| cell.set(task.get().cast()));
    // SAFETY: this thread has no other job and ends soon; the memory of the job is not used again.
    unsafe { heap.run(run_task::<F, T>) };
    task.into_inner().result
}

/// Runs `job` on a new thread within `bounds`, which apply to memory allocated by the job, and waits for it.
pub fn run<T: Clone + Send>(bounds: Bounds, job: impl FnOnce() -> T + Send) -> Result<T, Failure> {
    install_hook(); // not on the job's heap
    let failed = |error: io::Error| Failure::Thread(error.to_string());
    let heap = Heap::new(bounds).map_err(failed)?;
    let heap = &*heap;
    // A new thread, because an abandoned job leaves its thread-local state behind.
    let result = thread::scope(|scope| {
        let thread = thread::Builder::new().name("template".to_string());
        let handle = thread.spawn_scoped(scope, move || run_on(heap, job)).map_err(failed)?;
        Ok(handle.join())
    })?;
    match result {
        Ok(Some(result)) => result.map_err(Failure::Panic),
        Ok(None) => Err(Failure::Memory),
        Err(_) => Err(Failure::Panic("thread ended".to_string())),
    }
}

fn install_hook() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !CATCHING.with(Cell::get) {
                previous(info);
            }
        }));
    });
}

/// Runs `job`; a panic becomes an error with its message and is not printed.
pub fn catch<T>(job: impl FnOnce() -> T) -> Result<T, String> {
    install_hook();
    let before = CATCHING.with(|cell| cell.replace(true));
    let result = catch_unwind(AssertUnwindSafe(job));
    CATCHING.with(|cell| cell.set(before));
    result.map_err(|payload| {
        let message = payload
            .downcast_ref::<&str>()
            .map(|text| text.to_string())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "unknown panic".to_string());
        // Dropping the payload may panic again.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(payload)));
        message
    })
}
