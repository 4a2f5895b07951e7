//! Runs a job on its own thread with a limit on the memory that it may hold.
//!
//! A template can double a string in a loop: few instructions, no output, all memory. Nothing in the
//! interpreter counts that, so the allocator does. An allocation cannot fail cleanly in Rust (unwinding
//! out of an allocator is undefined, failing aborts the process); so a thread that asks for too much
//! never gets an answer: it is left asleep for good, and its caller carries on with an error. That costs
//! one sleeping thread and at most the limit in memory each time; callers must stop using what causes it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, Once, PoisonError};
use std::thread;

const STACK_BYTES: usize = 8 << 20;

#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// The job wanted more memory than allowed.
    Memory,
    /// The job panicked, with this message.
    Panic(String),
    /// No thread could be started.
    Thread(String),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    Done,
    Stuck,
}

struct Gate {
    phase: Mutex<Phase>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, phase: Phase) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
        self.changed.notify_all();
    }
}

struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

thread_local! {
    /// The gate of the bounded job on this thread; null where there is none.
    static GATE: Cell<*const Gate> = const { Cell::new(ptr::null()) };
    /// Bytes that the job may still take.
    static LEFT: Cell<isize> = const { Cell::new(0) };
}

static NEVER: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

fn take(bytes: usize) {
    let gate = GATE.with(Cell::get);
    if gate.is_null() {
        return;
    }
    let left = LEFT.with(Cell::get).saturating_sub_unsigned(bytes);
    LEFT.with(|cell| cell.set(left));
    if left < 0 {
        GATE.with(|cell| cell.set(ptr::null()));
        // SAFETY: the job's closure, which this thread never leaves, holds the gate.
        unsafe { &*gate }.set(Phase::Stuck);
        let mut guard = NEVER.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            guard = NEVER.1.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn give(bytes: usize) {
    LEFT.with(|cell| cell.set(cell.get().saturating_add_unsigned(bytes)));
}

// SAFETY: every request is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        System.alloc(layout)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        System.alloc_zeroed(layout)
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        take(size);
        give(layout.size());
        System.realloc(memory, layout, size)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        give(layout.size());
        System.dealloc(memory, layout)
    }
}

/// Runs `job` with at most `bytes` of memory at a time beyond what exists, and waits for it.
pub fn run<T: Send + 'static>(
    bytes: usize,
    job: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let gate = Arc::new(Gate { phase: Mutex::new(Phase::Running), changed: Condvar::new() });
    let own = gate.clone();
    let handle = thread::Builder::new()
        .name("template".to_string())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            LEFT.with(|cell| cell.set(isize::try_from(bytes).unwrap_or(isize::MAX)));
            GATE.with(|cell| cell.set(Arc::as_ptr(&own)));
            let result = catch(job);
            GATE.with(|cell| cell.set(ptr::null()));
            own.set(Phase::Done);
            result
        })
        .map_err(|error| Failure::Thread(error.to_string()))?;
    let mut phase = gate.phase.lock().unwrap_or_else(PoisonError::into_inner);
    while *phase == Phase::Running {
        phase = gate.changed.wait(phase).unwrap_or_else(PoisonError::into_inner);
    }
    if *phase == Phase::Stuck {
        return Err(Failure::Memory); // dropping the handle lets the thread sleep on alone
    }
    drop(phase);
    match handle.join() {
        Ok(result) => result.map_err(Failure::Panic),
        Err(_) => Err(Failure::Panic("thread ended".to_string())),
    }
}

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `job`; a panic becomes its message and is not printed.
pub fn catch<T>(job: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !CATCHING.with(Cell::get) {
                previous(info);
            }
        }));
    });
    let before = CATCHING.with(|cell| cell.replace(true));
    let result = catch_unwind(AssertUnwindSafe(job));
    CATCHING.with(|cell| cell.set(before));
    result.map_err(|payload| {
        let message = payload
            .downcast_ref::<&str>()
            .map(|text| text.to_string())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "unknown panic".to_string());
        // A payload may panic again when it is dropped.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(payload)));
        message
    })
}
