//! The cache folder of Hugging Face's tools (docs "Understand caching" of huggingface_hub):
//! models--ORG--REPO/{blobs/ETAG, refs/REVISION, snapshots/COMMIT/FILE -> ../../blobs/ETAG} and .locks/models--ORG--REPO/ETAG.lock.
use std::env;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.trim().is_empty())
}

fn home() -> PathBuf {
    let home = || PathBuf::from(variable("HOME").unwrap_or("/".into()));
    let path = variable("HF_HOME").map(PathBuf::from).unwrap_or_else(|| {
        variable("XDG_CACHE_HOME").map(PathBuf::from).unwrap_or_else(|| home().join(".cache")).join("huggingface")
    });
    match path.strip_prefix("~") {
        Ok(rest) => home().join(rest),
        Err(_) => path,
    }
}

/// HF_HUB_CACHE, or the folder `hub` of HF_HOME.
pub fn folder() -> PathBuf {
    variable("HF_HUB_CACHE").map_or_else(|| home().join("hub"), PathBuf::from)
}

/// HF_TOKEN, or the contents of the token file.
pub fn token() -> Option<String> {
    let file = || variable("HF_TOKEN_PATH").map_or_else(|| home().join("token"), PathBuf::from);
    variable("HF_TOKEN")
        .or_else(|| fs::read_to_string(file()).ok())
        .map(|token| token.trim().to_string())
        .filter(|token| !token.is_empty())
}

pub fn offline() -> bool {
    variable("HF_HUB_OFFLINE").is_some_and(|v| ["1", "on", "yes", "true"].contains(&v.trim().to_lowercase().as_str()))
}

pub fn endpoint() -> String {
    variable("HF_ENDPOINT").unwrap_or("https://huggingface.co".into()).trim_end_matches('/').to_string()
}

/// A repository in the cache.
pub struct RepoCache {
    folder: PathBuf,
    locks: PathBuf,
}

/// An exclusive lock between processes, released by the kernel when its owner ends.
pub struct Lock(#[allow(dead_code)] File);

impl RepoCache {
    pub fn new(cache: &Path, repo: &str) -> RepoCache {
        let name = format!("models--{}", repo.replace('/', "--"));
        RepoCache { folder: cache.join(&name), locks: cache.join(".locks").join(&name) }
    }

    pub fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }
    pub fn incomplete(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(format!("{etag}.incomplete"))
    }
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// The commit of a branch or tag when it was last fetched.
    pub fn commit_of(&self, revision: &str) -> Option<String> {
        if is_commit(revision) && self.snapshot(revision).is_dir() {
            return Some(revision.to_string());
        }
        let text = fs::read_to_string(self.folder.join("refs").join(revision)).ok()?;
        Some(text.trim().to_string()).filter(|commit| is_commit(commit))
    }

    pub fn set_commit(&self, revision: &str, commit: &str) -> io::Result<()> {
        if revision == commit {
            return Ok(());
        }
        let path = self.folder.join("refs").join(revision);
        fs::create_dir_all(path.parent().unwrap_or(&self.folder))?;
        let temporary = path.with_file_name(format!(".{}.{}", commit, std::process::id()));
        fs::write(&temporary, commit)?;
        fs::rename(&temporary, &path)
    }

    /// Files of a snapshot whose contents are there, relative to it, in order.
    pub fn files(&self, commit: &str) -> Vec<String> {
        fn walk(folder: &Path, prefix: &str, depth: usize, found: &mut Vec<String>) {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let Ok(name) = entry.file_name().into_string() else { continue };
                let path = entry.path();
                if path.is_file() {
                    found.push(format!("{prefix}{name}"));
                } else if depth > 0 && path.is_dir() && !path.is_symlink() {
                    walk(&path, &format!("{prefix}{name}/"), depth - 1, found);
                }
            }
        }
        let mut found = Vec::new();
        walk(&self.snapshot(commit), "", 8, &mut found);
        found.sort();
        found
    }

    /// Makes `file` of the snapshot a link to the blob. `file` has been checked with good_path().
    pub fn link(&self, commit: &str, file: &str, etag: &str) -> io::Result<()> {
        let path = self.snapshot(commit).join(file);
        fs::create_dir_all(path.parent().unwrap_or(&self.folder))?;
        let up = "../".repeat(2 + file.matches('/').count());
        let temporary = path.with_file_name(format!(".{etag}.{}", std::process::id()));
        let _ = fs::remove_file(&temporary);
        symlink(format!("{up}blobs/{etag}"), &temporary)?;
        fs::rename(&temporary, &path)
    }

    /// Locks a blob against other processes, those of huggingface_hub included. `waiting` is called if another one has it.
    pub fn lock(&self, etag: &str, waiting: impl FnOnce()) -> io::Result<Lock> {
        fs::create_dir_all(&self.locks)?;
        fs::create_dir_all(self.folder.join("blobs"))?;
        let file = File::options().create(true).truncate(false).write(true).open(self.locks.join(format!("{etag}.lock")))?;
        let flock = |how| match unsafe { libc::flock(file.as_raw_fd(), how) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        match flock(libc::LOCK_EX | libc::LOCK_NB) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                waiting();
                flock(libc::LOCK_EX)?;
            }
            Err(error) => return Err(error),
        }
        Ok(Lock(file))
    }

    /// Free bytes of the cache's file system, for this user.
    pub fn free_bytes(&self) -> Option<u64> {
        use std::os::unix::ffi::OsStrExt;
        let mut folder = self.folder.as_path();
        while !folder.exists() {
            folder = folder.parent()?;
        }
        let path = std::ffi::CString::new(folder.as_os_str().as_bytes()).ok()?;
        let mut info: libc::statvfs = unsafe { std::mem::zeroed() };
        (unsafe { libc::statvfs(path.as_ptr(), &mut info) } == 0).then(|| info.f_bavail * info.f_frsize)
    }
}

pub fn is_commit(text: &str) -> bool {
    text.len() == 40 && is_hex(text)
}
pub fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}
