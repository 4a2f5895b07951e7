//! Progress of a download on standard error: one line that changes in a terminal, else a line per tenth.
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

pub struct Progress {
    quiet: bool,
    terminal: bool,
    title: String,
    total: u64,
    done: u64,
    before: u64, // bytes of `done` that an earlier run fetched
    started: Instant,
    shown: Option<Instant>,
    tenth: u64,
    open_line: bool,
}

pub fn size_text(bytes: u64) -> String {
    match bytes {
        0..=999_999 => format!("{:.0} kB", bytes as f64 / 1e3),
        1_000_000..=999_999_999 => format!("{:.0} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

impl Progress {
    pub fn new(quiet: bool) -> Progress {
        Progress {
            quiet,
            terminal: std::io::stderr().is_terminal(),
            title: String::new(),
            total: 0,
            done: 0,
            before: 0,
            started: Instant::now(),
            shown: None,
            tenth: 0,
            open_line: false,
        }
    }

    /// Starts a download of `total` bytes.
    pub fn start(&mut self, title: String, total: u64) {
        self.end_line();
        self.note(&format!("{title}: {} to fetch", size_text(total)));
        (self.title, self.total, self.done, self.before) = (title, total, 0, 0);
        (self.started, self.shown, self.tenth) = (Instant::now(), None, 0);
    }

    /// `bytes` were there before.
    pub fn skip(&mut self, bytes: u64) {
        self.before += bytes;
        self.add(bytes);
    }

    /// The bytes of a file count again from zero.
    pub fn restart(&mut self, bytes: u64) {
        self.done = self.done.saturating_sub(bytes);
        self.before = self.before.min(self.done);
    }

    pub fn add(&mut self, bytes: u64) {
        self.done += bytes;
        if self.quiet || self.total == 0 {
            return;
        }
        let percent = (100 * self.done / self.total).min(100);
        let last = self.done >= self.total;
        if self.terminal {
            if !last && self.shown.is_some_and(|at| at.elapsed() < Duration::from_millis(200)) {
                return;
            }
            self.shown = Some(Instant::now());
            eprint!("\r\x1b[K{}", self.line(percent));
            let _ = std::io::stderr().flush();
            self.open_line = true;
            if last {
                self.end_line();
            }
        } else if percent / 10 > self.tenth {
            self.tenth = percent / 10;
            eprintln!("{}", self.line(percent));
        }
    }

    fn line(&self, percent: u64) -> String {
        let bar: String = (0..20).map(|i| if i * 5 < percent { '#' } else { '.' }).collect();
        let seconds = self.started.elapsed().as_secs_f64();
        let rate = (self.done - self.before.min(self.done)) as f64 / seconds.max(0.001);
        let left = self.total.saturating_sub(self.done) as f64 / rate.max(1.0);
        let mut text = format!("{} [{bar}] {percent:3} % of {}", self.title, size_text(self.total));
        if seconds > 1.0 && rate >= 1.0 {
            text += &format!(", {}/s, {}:{:02} left", size_text(rate as u64), left as u64 / 60, left as u64 % 60);
        }
        text
    }

    /// A line of its own.
    pub fn note(&mut self, text: &str) {
        self.end_line();
        if !self.quiet {
            eprintln!("{text}");
        }
    }

    pub fn end_line(&mut self) {
        if self.open_line {
            eprintln!();
            self.open_line = false;
        }
    }
}
