//! Fetches the files of a model: plans, locks, continues, compares checksums.
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::time::Duration;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::cache::{is_hex, RepoCache};
use crate::hub::{FileInfo, Hub, HubError};
use crate::name::ModelName;
use crate::progress::{size_text, Progress};
use crate::select::{select, shards, Selection, INDEX};

/// Attempts in a row that bring no byte.
const MAX_FAILURES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// The checksum that an ETag is: SHA-256, Git's SHA-1 of a blob, or none that is known.
enum Checksum {
    Sha256(Sha256),
    Git(Sha1),
    Unknown,
}

impl Checksum {
    fn new(info: &FileInfo) -> Checksum {
        match info.etag.len() {
            64 if is_hex(&info.etag) => Checksum::Sha256(Sha256::new()),
            40 if is_hex(&info.etag) => {
                let mut sha = Sha1::new();
                sha.update(format!("blob {}\0", info.size));
                Checksum::Git(sha)
            }
            _ => Checksum::Unknown,
        }
    }
    fn update(&mut self, bytes: &[u8]) {
        match self {
            Checksum::Sha256(sha) => sha.update(bytes),
            Checksum::Git(sha) => sha.update(bytes),
            Checksum::Unknown => {}
        }
    }
    fn finish(self) -> Option<String> {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect();
        match self {
            Checksum::Sha256(sha) => Some(hex(&sha.finalize())),
            Checksum::Git(sha) => Some(hex(&sha.finalize())),
            Checksum::Unknown => None,
        }
    }
}

fn disk_error(path: &std::path::Path, error: &io::Error) -> String {
    let advice = match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => ": free some space, or set HF_HUB_CACHE to a folder on a larger disk; what was fetched is kept",
        Some(libc::EFBIG) => ": the file is larger than the limit of this process (ulimit -f); what was fetched is kept",
        Some(libc::EACCES | libc::EROFS | libc::EPERM) => ": set HF_HUB_CACHE to a folder that this user may write",
        _ => "",
    };
    format!("{}: {error}{advice}", path.display())
}

struct Fetch<'a> {
    hub: &'a Hub,
    name: &'a ModelName,
    repo: RepoCache,
    progress: &'a mut Progress,
}

/// Returns the path of the first GGUF file, or of the snapshot's directory.
pub fn pull(hub: &Hub, name: &ModelName, progress: &mut Progress) -> Result<PathBuf, String> {
    let repo = RepoCache::new(&hub.cache, &name.repo);
    let mut fetch = Fetch { hub, name, repo, progress };
    if hub.offline {
        return fetch.from_cache().map_err(|error| format!("{error} (HF_HUB_OFFLINE is set)"));
    }
    match fetch.from_hub() {
        Ok(path) => Ok(path),
        Err(HubError::Refused(message)) => Err(message),
        Err(HubError::Unreachable(message)) => match fetch.from_cache() {
            Ok(path) => {
                fetch.progress.note(&format!("{name}: {message}; the copy in the cache is used"));
                Ok(path)
            }
            Err(_) => Err(message),
        },
    }
}

impl Fetch<'_> {
    /// The model as far as the cache has it, all or nothing.
    fn from_cache(&self) -> Result<PathBuf, String> {
        let missing = || format!("not in the cache {}", self.hub.cache.display());
        let commit = self.repo.commit_of(self.name.revision()).ok_or_else(missing)?;
        let files = self.repo.files(&commit);
        let snapshot = self.repo.snapshot(&commit);
        match select(&files, self.name.quant.as_deref()).map_err(|error| format!("{}: {error}", missing()))? {
            Selection::Gguf(parts) => Ok(snapshot.join(&parts[0])),
            Selection::Safetensors { weights: Some(_), .. } => Ok(snapshot),
            Selection::Safetensors { weights: None, .. } => {
                let index = fs::read_to_string(snapshot.join(INDEX)).map_err(|e| disk_error(&snapshot, &e))?;
                match shards(&index)?.iter().find(|shard| !files.contains(shard)) {
                    Some(shard) => Err(format!("{}: {shard} is missing", missing())),
                    None => Ok(snapshot),
                }
            }
        }
    }

    fn from_hub(&mut self) -> Result<PathBuf, HubError> {
        let listing = self.hub.listing(self.name)?;
        let commit = listing.commit.as_str();
        let selection = select(&listing.files, self.name.quant.as_deref()).map_err(HubError::Refused)?;
        let snapshot = self.repo.snapshot(commit);
        let path = match selection {
            Selection::Gguf(parts) => {
                self.fetch_all(commit, &parts)?;
                snapshot.join(&parts[0])
            }
            Selection::Safetensors { small, weights } => {
                self.fetch_all(commit, &small)?;
                let weights = match weights {
                    Some(weights) => vec![weights],
                    None => {
                        let index = fs::read_to_string(snapshot.join(INDEX));
                        shards(&index.map_err(|e| HubError::Refused(disk_error(&snapshot, &e)))?).map_err(HubError::Refused)?
                    }
                };
                self.fetch_all(commit, &weights)?;
                snapshot
            }
        };
        // Last: a branch leads to complete snapshots only.
        let set = self.repo.set_commit(self.name.revision(), commit);
        set.map_err(|e| HubError::Refused(disk_error(&self.hub.cache, &e)))?;
        Ok(path)
    }

    fn fetch_all(&mut self, commit: &str, files: &[String]) -> Result<(), HubError> {
        let there = self.repo.files(commit);
        let mut plan = Vec::new();
        for file in files.iter().filter(|f| !there.contains(f)) {
            plan.push(self.hub.file(self.name, commit, file)?);
        }
        let length = |path| fs::metadata(path).map_or(0, |m| m.len());
        let total: u64 = plan.iter().filter(|f| !self.repo.blob(&f.etag).exists()).map(|f| f.size).sum();
        let have: u64 = plan.iter().map(|f| length(self.repo.incomplete(&f.etag)).min(f.size)).sum();
        if let Some(free) = self.repo.free_bytes().filter(|free| total.saturating_sub(have) > *free) {
            return Err(HubError::Refused(format!(
                "{} more are needed, and {} has {} free: free some space, or set HF_HUB_CACHE to a folder on a larger disk",
                size_text(total - have),
                self.hub.cache.display(),
                size_text(free)
            )));
        }
        if total > 0 {
            self.progress.start(self.name.to_string(), total);
        }
        for info in &plan {
            self.fetch_one(info)?;
            let linked = self.repo.link(commit, &info.name, &info.etag);
            linked.map_err(|e| HubError::Refused(disk_error(&self.hub.cache, &e)))?;
        }
        Ok(())
    }

    /// Brings the blob into the cache, unless it is there.
    fn fetch_one(&mut self, info: &FileInfo) -> Result<(), HubError> {
        let disk = |e: &io::Error| HubError::Refused(disk_error(&self.hub.cache, e));
        let blob = self.repo.blob(&info.etag);
        if blob.exists() {
            return Ok(());
        }
        let progress = &mut self.progress;
        let _lock = self
            .repo
            .lock(&info.etag, || progress.note(&format!("{}: another process fetches it; waiting", info.name)))
            .map_err(|e| disk(&e))?;
        if blob.exists() {
            self.progress.add(info.size); // by the other process
            return Ok(());
        }
        let incomplete = self.repo.incomplete(&info.etag);
        for attempt in 0.. {
            let continued = self.download(info)?;
            let Some(found) = continued.checksum.filter(|found| *found != info.etag) else { break };
            fs::remove_file(&incomplete).map_err(|e| disk(&e))?;
            self.progress.restart(info.size);
            // An old remainder may be damaged: once more from the beginning.
            if !continued.resumed || attempt > 0 {
                return Err(HubError::Refused(format!(
                    "{}: the checksum is {found}, and the hub says {}: the download is damaged and was removed; try again",
                    info.name, info.etag
                )));
            }
        }
        fs::rename(&incomplete, &blob).map_err(|e| disk(&e))
    }

    /// Fetches all bytes of the file into its incomplete blob, over as many connections as that takes.
    fn download(&mut self, info: &FileInfo) -> Result<Downloaded, HubError> {
        let path = self.repo.incomplete(&info.etag);
        let disk = |e: io::Error| HubError::Refused(disk_error(&path, &e));
        let mut file = File::options().create(true).truncate(false).read(true).write(true).open(&path).map_err(disk)?;
        let mut have = file.metadata().map_err(disk)?.len();
        if have > info.size {
            file.set_len(0).map_err(disk)?;
            have = 0;
        }
        let mut checksum = Checksum::new(info);
        let mut buffer = vec![0; 1 << 20];
        let mut left = have;
        while left > 0 {
            let n = file.read(&mut buffer).map_err(disk)?;
            checksum.update(&buffer[..n]);
            left = left.saturating_sub(n as u64);
        }
        self.progress.skip(have);
        let mut resumed = have > 0;
        let mut failures = 0;
        while have < info.size {
            let before = have;
            match self.receive(info, &mut file, &mut have, &mut checksum, &mut resumed) {
                Ok(()) => {}
                Err(HubError::Unreachable(message)) => {
                    failures = if have > before { 0 } else { failures + 1 };
                    if failures >= MAX_FAILURES {
                        return Err(HubError::Unreachable(format!("{}: {message}; run again to continue", info.name)));
                    }
                    std::thread::sleep(FIRST_PAUSE * 2u32.pow(failures));
                }
                Err(refused) => return Err(refused),
            }
        }
        file.sync_all().map_err(disk)?;
        Ok(Downloaded { checksum: checksum.finish(), resumed })
    }

    /// Appends what one connection gives.
    fn receive(
        &mut self,
        info: &FileInfo,
        file: &mut File,
        have: &mut u64,
        checksum: &mut Checksum,
        resumed: &mut bool,
    ) -> Result<(), HubError> {
        let path = self.repo.incomplete(&info.etag);
        let disk = |e: io::Error| HubError::Refused(disk_error(&path, &e));
        let response = self.hub.http.get(&info.url, *have)?;
        let start = match response.status() {
            206 => {
                let range = response.header("content-range").unwrap_or_default();
                range.strip_prefix("bytes ").and_then(|r| r.split('-').next()).and_then(|n| n.parse().ok())
            }
            200 => Some(0),
            status if status == 429 || status >= 500 => {
                return Err(HubError::Unreachable(format!("the storage answers {status}")));
            }
            status => {
                return Err(HubError::Refused(format!("{}: the storage answers {status}", info.name)));
            }
        };
        if start == Some(0) && *have > 0 {
            // A storage that cannot continue.
            file.set_len(0).map_err(disk)?;
            file.seek(SeekFrom::Start(0)).map_err(disk)?;
            self.progress.restart(*have);
            *checksum = Checksum::new(info);
            *have = 0;
            *resumed = false;
        } else if start != Some(*have) {
            return Err(HubError::Refused(format!("{}: the storage sends another part than byte {have}", info.name)));
        }
        let pieces = self.hub.http.body(response);
        while let Some(piece) = pieces.next()? {
            if *have + piece.len() as u64 > info.size {
                return Err(HubError::Refused(format!("{}: more than {} bytes come", info.name, info.size)));
            }
            file.write_all(&piece).map_err(disk)?;
            checksum.update(&piece);
            *have += piece.len() as u64;
            self.progress.add(piece.len() as u64);
        }
        match *have < info.size {
            true => Err(HubError::Unreachable(format!("the connection ended at byte {have} of {}", info.size))),
            false => Ok(()),
        }
    }
}

struct Downloaded {
    checksum: Option<String>,
    resumed: bool, // some bytes are of an earlier run
}
