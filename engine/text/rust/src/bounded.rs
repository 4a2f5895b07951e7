//! Runs a job on its own thread with limits on the memory that it may hold.
//!
//! A template can make much of little: nested JSON with indents, a string joined to itself. The
//! allocator counts what a job holds. A job that looks at `check()` where it makes things, and at
//! `check_text()` before it makes a large text, ends by itself with an error, and nothing stays behind.
//!
//! What a program of nothing but operators does between two such looks cannot be ended: an allocation
//! cannot fail cleanly in Rust (unwinding out of an allocator is undefined, failing aborts the process).
//! So there is a hard limit besides. A thread that asks for more never gets an answer: it is left
//! asleep for good, and its caller carries on with an error. That costs one sleeping thread and at most
//! the hard limit in memory each time; callers must stop using what causes it.

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

#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Memory beyond which `check()` fails.
    pub soft: usize,
    /// Memory beyond which the thread is left asleep.
    pub hard: usize,
    /// Bytes of a single text.
    pub text: usize,
}

/// What a job of bounded size made too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Excess {
    Memory,
    Text,
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
    /// Bytes that the job may still take, by the hard limit and by the soft one.
    static LEFT: Cell<isize> = const { Cell::new(0) };
    static SPARE: Cell<isize> = const { Cell::new(0) };
    static TEXT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Whether the job on this thread holds too much memory. Always fine where there is none.
pub fn check() -> Result<(), Excess> {
    if !GATE.with(Cell::get).is_null() && LEFT.with(Cell::get) < SPARE.with(Cell::get) {
        return Err(Excess::Memory);
    }
    Ok(())
}

/// Whether the job on this thread may make a text of so many bytes.
pub fn check_text(bytes: usize) -> Result<(), Excess> {
    if !GATE.with(Cell::get).is_null() && bytes > TEXT.with(Cell::get) {
        return Err(Excess::Text);
    }
    check()
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

/// Runs `job` with so much memory at a time beyond what exists, and waits for it.
pub fn run<T: Send + 'static>(
    bounds: Bounds,
    job: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let gate = Arc::new(Gate { phase: Mutex::new(Phase::Running), changed: Condvar::new() });
    let own = gate.clone();
    let handle = thread::Builder::new()
        .name("template".to_string())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            let signed = |bytes| isize::try_from(bytes).unwrap_or(isize::MAX);
            LEFT.with(|cell| cell.set(signed(bounds.hard)));
            SPARE.with(|cell| cell.set(signed(bounds.hard.saturating_sub(bounds.soft))));
            TEXT.with(|cell| cell.set(bounds.text));
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
