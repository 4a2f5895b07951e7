//! The crate's error: a code of the C ABI and a message for users.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    InvalidArgument = 1,
    NotFound = 2,
    Internal = 3,
    Exhausted = 4,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    pub code: Code,
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn invalid(message: impl Into<String>) -> Self {
        Error { code: Code::InvalidArgument, message: message.into() }
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Error { code: Code::NotFound, message: message.into() }
    }

    pub fn exhausted(message: impl Into<String>) -> Self {
        Error { code: Code::Exhausted, message: message.into() }
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Error { code: Code::Internal, message: message.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
