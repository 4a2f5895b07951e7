//! Ends steps of grammars that take too long. Limits of llguidance do not count all work: in
//! `start: /b+/ "b"`, for example, each byte must be another "b", without end.
//!
//! One thread looks at the processor time of the threads that run steps. So a busy machine ends no step.

use std::io;
use std::mem::MaybeUninit;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use llguidance::CancellationHandle;

/// Processor time of a step. Within the limits of llguidance, a step takes about 8 ms.
pub const LIMIT: Duration = Duration::from_millis(200);
const PERIOD: Duration = Duration::from_millis(20);

struct Step {
    clock: libc::clockid_t,
    began: Duration,
    handle: CancellationHandle,
}

/// The step that a matcher runs.
#[derive(Default)]
pub struct Slot(Mutex<Option<Step>>);

struct Watch {
    slots: Mutex<(Vec<Weak<Slot>>, bool)>, // the bool: the thread runs
    filled: Condvar,
}

static WATCH: Watch = Watch { slots: Mutex::new((Vec::new(), false)), filled: Condvar::new() };

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The clock of this thread's processor time.
fn own_clock() -> Option<libc::clockid_t> {
    let mut clock = MaybeUninit::uninit();
    // SAFETY: the clock is read only if it was written.
    unsafe {
        let failed = libc::pthread_getcpuclockid(libc::pthread_self(), clock.as_mut_ptr());
        (failed == 0).then(|| clock.assume_init())
    }
}

fn time_of(clock: libc::clockid_t) -> Option<Duration> {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the time is read only if it was written.
    let time = unsafe {
        let failed = libc::clock_gettime(clock, time.as_mut_ptr());
        (failed == 0).then(|| time.assume_init())?
    };
    Some(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

impl Slot {
    /// Error: the thread cannot start.
    pub fn new() -> io::Result<Arc<Slot>> {
        let slot = Arc::new(Slot::default());
        let mut slots = locked(&WATCH.slots);
        if !slots.1 {
            thread::Builder::new().name("grammar watch".to_string()).spawn(watch)?;
            slots.1 = true;
        }
        slots.0.push(Arc::downgrade(&slot));
        WATCH.filled.notify_one();
        Ok(slot)
    }

    /// Runs a step of the matcher with this handle.
    pub fn run<T>(&self, handle: Option<CancellationHandle>, step: impl FnOnce() -> T) -> T {
        struct Ended<'a>(&'a Slot);
        impl Drop for Ended<'_> {
            fn drop(&mut self) {
                *locked(&self.0 .0) = None;
            }
        }
        let _ended = Ended(self);
        if let (Some(handle), Some(clock)) = (handle, own_clock()) {
            *locked(&self.0) = time_of(clock).map(|began| Step { clock, began, handle });
        }
        step()
    }
}

fn watch() {
    loop {
        let mut slots = locked(&WATCH.slots);
        while slots.0.is_empty() {
            slots = WATCH.filled.wait(slots).unwrap_or_else(PoisonError::into_inner);
        }
        slots.0.retain(|slot| {
            let Some(slot) = slot.upgrade() else { return false };
            // The thread is in the step as long as this is locked, so its clock exists.
            if let Some(step) = &*locked(&slot.0) {
                let now = time_of(step.clock);
                if now.is_some_and(|now| now.saturating_sub(step.began) > LIMIT) {
                    step.handle.cancel();
                }
            }
            true
        });
        drop(slots);
        thread::sleep(PERIOD);
    }
}
